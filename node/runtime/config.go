package runtime

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"golang.org/x/sys/unix"
)

// PauseImage holds a pod's namespaces open; Balsa carries it.
const PauseImage = "docker.io/balsahq/pause:1"

// HelloImage is the demonstration image that Balsa carries, in versions 1 and 2.
const HelloImage = "docker.io/balsahq/hello:1"

// maxRunDir keeps shim sockets (RunDir/s/<64 hex digits>) within the 108 bytes
// of a Unix socket address.
const maxRunDir = 36

// Config says where the runtime keeps its things.
type Config struct {
	DataDir    string       // containerd's root, its configuration and its log; kept
	RunDir     string       // sockets and run-time state; gone after a reboot
	BinDir     string       // helper programs; see LayOut
	CNIConfDir string       // where the network writes its conflist
	Program    string       // the balsa binary; its `containerd` command is the child
	Logger     *slog.Logger // never nil

	Handlers    []Handler // for RuntimeClasses, besides the default one
	ProgramDirs []string  // where installed runtimes are looked for; see Installed
	DropInDir   string    // of further configuration of containerd, *.toml; "" for none
}

// Validate reports every missing field at once.
func (c Config) Validate() error {
	var missing []string
	for name, value := range map[string]string{
		"DataDir": c.DataDir, "RunDir": c.RunDir, "BinDir": c.BinDir, "CNIConfDir": c.CNIConfDir, "Program": c.Program,
	} {
		if value == "" {
			missing = append(missing, name)
		}
	}
	if c.Logger == nil {
		missing = append(missing, "Logger")
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("container runtime: not set: %s", strings.Join(missing, ", "))
	}
	for _, h := range c.Handlers {
		if err := h.Validate(); err != nil {
			return fmt.Errorf("container runtime: %w", err)
		}
	}
	if len(c.RunDir) > maxRunDir {
		return fmt.Errorf("container runtime: the run directory %s is longer than %d characters: sockets below it would not fit into a socket address", c.RunDir, maxRunDir)
	}
	return nil
}

// Socket is the path of containerd's socket, which also serves CRI.
func (c Config) Socket() string { return filepath.Join(c.RunDir, "containerd.sock") }

// Endpoint is Socket as CRI clients write it.
func (c Config) Endpoint() string { return "unix://" + c.Socket() }

func (c Config) configFile() string { return filepath.Join(c.DataDir, "containerd.toml") }
func (c Config) logFile() string    { return filepath.Join(c.DataDir, "containerd.log") }
func (c Config) pidFile() string    { return filepath.Join(c.RunDir, "containerd.pid") }
func (c Config) stateDir() string   { return filepath.Join(c.RunDir, "containerd") }
func (c Config) rootDir() string    { return filepath.Join(c.DataDir, "containerd") }

// tomlTemplate leaves out every plugin that CRI on overlayfs does not use: each
// costs start-up time and memory on every node.
var tomlTemplate = template.Must(template.New("containerd.toml").Parse(`version = 4
imports = [{{with .Imports}}{{printf "%q" .}}{{end}}]
{{with .ImportsDigest}}# The imported files have the digest {{.}}.
{{end}}root = {{printf "%q" .Root}}
state = {{printf "%q" .State}}
disabled_plugins = [
  "io.containerd.differ.v1.erofs",
  "io.containerd.image-verifier.v1.bindir",
  "io.containerd.internal.v1.opt",
  "io.containerd.monitor.container.v1.restart",
  "io.containerd.internal.v1.tracing",
  "io.containerd.mount-handler.v1.erofs",
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.native",
  "io.containerd.tracing.processor.v1.otlp",
]

[plugins."io.containerd.server.v1.grpc"]
  address = {{printf "%q" .Socket}}
[plugins."io.containerd.server.v1.ttrpc"]
  address = {{printf "%q" (print .Socket ".ttrpc")}}

[debug]
  level = "warn"

[plugins."io.containerd.shim.v1.manager"]
  socket_dir = {{printf "%q" .ShimSockets}}

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = {{printf "%q" .Pause}}
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = {{printf "%q" .Registries}}

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = {{.RestrictOOM}}
  disable_apparmor = {{.NoAppArmor}}
  netns_mounts_under_state_dir = true
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  stats_collect_period = "15s"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [{{printf "%q" .BinDir}}]
    conf_dir = {{printf "%q" .CNIConfDir}}
    max_conf_num = 1
    use_internal_loopback = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      runtime_path = {{printf "%q" .Shim}}
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = {{printf "%q" .Runc}}
        SystemdCgroup = false
{{range .Handlers}}
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{{printf "%q" .Name}}]
      runtime_type = {{printf "%q" .Type}}
{{- if .IsShim}}
      runtime_path = {{printf "%q" .Path}}
{{- else}}
      runtime_path = {{printf "%q" $.Shim}}
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{{printf "%q" .Name}}.options]
        BinaryName = {{printf "%q" .Path}}
        SystemdCgroup = false
{{- end}}
{{end}}`))

// writeConfig renders containerd's configuration; the result tells whether it
// differs from what a running child was started with.
func (c Config) writeConfig() (changed bool, err error) {
	var text strings.Builder
	imports, digest, err := c.dropIns()
	if err != nil {
		return false, err
	}
	err = tomlTemplate.Execute(&text, map[string]any{
		"Root": c.rootDir(), "State": c.stateDir(), "Socket": c.Socket(), "Pause": PauseImage,
		"ShimSockets": filepath.Join(c.RunDir, "s"), "Registries": filepath.Join(c.DataDir, "registries"), "BinDir": c.BinDir, "CNIConfDir": c.CNIConfDir,
		"Shim": filepath.Join(c.BinDir, "containerd-shim-runc-v2"), "Runc": filepath.Join(c.BinDir, "runc"),
		"Handlers": c.allHandlers(), "Imports": imports, "ImportsDigest": digest,
		"RestrictOOM": !hasCapability(unix.CAP_SYS_RESOURCE), "NoAppArmor": !exists("/sys/kernel/security/apparmor"),
	})
	if err != nil {
		return false, err
	}
	for _, dir := range []string{c.DataDir, c.RunDir, c.CNIConfDir, filepath.Join(c.DataDir, "registries")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return false, err
		}
	}
	if have, err := os.ReadFile(c.configFile()); err == nil && string(have) == text.String() {
		return false, nil
	}
	return true, replaceFile(c.configFile(), []byte(text.String()), 0o644)
}

// hasCapability reports whether the bounding set of this process has a capability. Without CAP_SYS_RESOURCE no process may
// lower an oom_score_adj, and containerd has to be told so.
func hasCapability(number uint) bool {
	set, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(number), 0, 0, 0)
	return err == nil && set == 1
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
