package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/balsahq/balsa/e2e/lan"
)

const installer = "../install.sh"

// rooted is a machine with its own root file system: this computer's, below a layer that takes all writes. No service
// manager runs there; start does what one would do.
type rooted struct {
	t      *testing.T
	m      *lan.Machine
	name   string
	layer  string // directory of the written files, seen from outside
	holder *lan.Process
}

// newRooted makes the empty layer; boot makes the root.
func newRooted(t *testing.T, m *lan.Machine, name string) *rooted {
	t.Helper()
	r := &rooted{t: t, m: m, name: name, layer: filepath.Join(m.Data(), "layer")}
	for _, dir := range []string{r.layer, filepath.Join(m.Data(), "work"), filepath.Join(m.Data(), "root")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// boot starts a process that holds the machine's root open for other processes.
func (r *rooted) boot() {
	r.t.Helper()
	const script = `set -e
cd "$1"
mount -t overlay overlay -o lowerdir=/,upperdir=layer,workdir=work root
for dir in proc sys dev; do mount --rbind /$dir root/$dir; done
mount -t tmpfs tmpfs root/run
cd root
pivot_root . mnt
umount -l /mnt
touch /run/up
exec sleep infinity`
	var err error
	r.holder, err = r.m.Start(lan.Program{
		Path: "unshare", Args: []string{"--mount", "--propagation", "private", "sh", "-c", script, "sh", r.m.Data()}, Log: filepath.Join(r.m.Dir, "root.log"),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.await("the root is there", func() error {
		_, err := os.Stat(r.path("/run/up"))
		return err
	})
}

// path returns the path by which this process sees a file of the machine.
func (r *rooted) path(p string) string {
	return filepath.Join("/proc", strconv.Itoa(r.holder.PID), "root", p)
}

func (r *rooted) await(what string, check func() error) {
	r.t.Helper()
	(&cluster{t: r.t}).eventually(r.name+": "+what, check)
}

// inside returns the arguments of nsenter for the root.
func (r *rooted) inside(args ...string) []string {
	return append([]string{"--target=" + strconv.Itoa(r.holder.PID), "--mount", "--"}, args...)
}

// run runs a program on the machine; its error contains standard error.
func (r *rooted) run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), 3*time.Minute)
	defer cancel()
	cmd := r.m.Command(ctx, "nsenter", r.inside(args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG=", "BALSA_DATA_DIR="+r.dataDir())
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%s: %s: %w: %s%s", r.name, args, err, out, exit.Stderr)
	}
	return string(out), err
}

func (r *rooted) must(args ...string) string {
	r.t.Helper()
	out, err := r.run(args...)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *rooted) dataDir() string { return "/var/lib/" + r.m.Name }

// flags keep machines apart that share one kernel.
func (r *rooted) flags() []string {
	return []string{"--disable-agent", "--node-name=" + r.name, "--data-dir=" + r.dataDir(), "--cgroup-root=/" + r.m.Name}
}

// unit holds a unit file's settings, in order.
func (r *rooted) unit(name string) map[string][]string {
	r.t.Helper()
	raw, err := os.ReadFile(r.path("/etc/systemd/system/" + name))
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[string][]string{}
	for line := range strings.Lines(string(raw)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			out[key] = append(out[key], value)
		}
	}
	return out
}

// start does what systemd does with a unit of Type=notify, until the unit is ready.
func (r *rooted) start(name string) *lan.Process {
	r.t.Helper()
	unit := r.unit(name)
	r.commands(unit["ExecStartPre"])
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: r.path("/run/notify"), Net: "unixgram"})
	if err != nil {
		r.t.Fatal(err)
	}
	defer socket.Close()
	log := filepath.Join(r.m.Dir, "server.log")
	p, err := r.m.Start(lan.Program{
		Path: "nsenter", Args: r.inside(strings.Fields(unit["ExecStart"][0])...), Log: log, Env: []string{"NOTIFY_SOCKET=/run/notify", "KUBECONFIG="},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if raw, err := os.ReadFile(log); err == nil && r.t.Failed() {
			r.t.Logf("%s:\n%s", r.name, tail(string(raw), 30))
		}
	})
	ended := context.AfterFunc(r.t.Context(), func() { socket.Close() })
	defer ended()
	go func() { <-p.Ended(); _ = socket.SetReadDeadline(time.Unix(1, 0)) }()
	_ = socket.SetReadDeadline(time.Now().Add(3 * time.Minute))
	buf := make([]byte, 256)
	if n, err := socket.Read(buf); err != nil || string(buf[:n]) != "READY=1" {
		r.t.Fatalf("%s is not ready: %q, %v", name, buf[:n], err)
	}
	r.commands(unit["ExecStartPost"])
	return p
}

// commands runs lines of a unit; a line that begins with - may fail.
func (r *rooted) commands(lines []string) {
	r.t.Helper()
	for _, line := range lines {
		command, may := strings.CutPrefix(line, "-")
		if _, err := r.run(strings.Fields(command)...); err != nil && !may {
			r.t.Fatal(err)
		}
	}
}

// here is a path that the machines and this process see alike.
func here(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// TestInstallThreeServers: the files that install.sh installs on three hosts form a cluster, with the commands of the
// README, and can be uninstalled again.
func TestInstallThreeServers(t *testing.T) {
	network, err := lan.New(lan.Config{Machines: 3, DiskBytes: 2 << 30})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := network.Close(); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	var hosts []*rooted
	for i, m := range network.Machines {
		hosts = append(hosts, newRooted(t, m, "server-"+strconv.Itoa(i+1)))
	}
	first, script, program := hosts[0], here(t, installer), here(t, binary)

	// The first one's files are installed into an image, before a program runs there.
	image := exec.CommandContext(t.Context(), script, append([]string{"--server", "--first", "--binary", program}, first.flags()...)...)
	image.Env = append(os.Environ(), "DESTDIR="+first.layer)
	if out, err := image.CombinedOutput(); err != nil {
		t.Fatalf("install.sh: %v\n%s", err, out)
	}
	first.boot()
	verifyUnit(t, first)
	first.start("balsa-server.service")

	for _, r := range hosts[1:] {
		r.boot()
		words := strings.Fields(first.must("balsa", "token", "create", "--role=server", "--print-command"))
		if len(words) != 6 {
			t.Fatalf("a command with --join and --token, not %q", words)
		}
		install := append([]string{script, "--server", "--no-start", "--binary", program}, words[2:]...)
		r.must(append(install, r.flags()...)...)
		info, err := os.Stat(r.path("/etc/balsa/join-token"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the token is not there for root alone: %v, %v", info, err)
		}
		r.start("balsa-server.service")
		if _, err := os.Stat(r.path("/etc/balsa/join-token")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the token is still there once its server has joined: %v", err)
		}
	}
	voters := func(want int) func() error {
		return func() error {
			out, err := first.run("balsa", "members")
			if got := strings.Count(out, " voter "); err == nil && got != want {
				err = fmt.Errorf("%d servers vote, want %d:\n%s", got, want, out)
			}
			return err
		}
	}
	first.await("three servers vote", voters(3))
	first.await("every control of the CIS benchmark that applies passes", func() error {
		_, err := first.run("balsa", "check")
		return err
	})

	// A second installation changes nothing.
	if out := hosts[1].must(script, "--server", "--no-start", "--binary", program); strings.Contains(out, "file:") || strings.Contains(out, "program:") {
		t.Errorf("a second installation of the same changes something:\n%s", out)
	}
	last := hosts[2]
	last.must(script, "--uninstall", "--purge")
	for _, left := range last.left(t) {
		t.Errorf("left behind: %s", left)
	}
	first.await("the others know that one has left for good", func() error {
		out, err := first.run("balsa", "members")
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 3 && f[0] == last.name && (f[2] == "voter" || f[2] == "learner") {
				err = errors.New(out)
			}
		}
		return err
	})
}

// left returns Balsa's files in a machine's layer.
func (r *rooted) left(t *testing.T) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(r.layer, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Type()&fs.ModeCharDevice == 0 && !strings.HasPrefix(path, filepath.Join(r.layer, "tmp")) {
			out = append(out, strings.TrimPrefix(path, r.layer))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/etc/balsa", r.dataDir(), "/run/balsa"} {
		if _, err := os.Stat(r.path(dir)); !errors.Is(err, fs.ErrNotExist) {
			out = append(out, dir)
		}
	}
	return out
}

// verifyUnit lets systemd check the unit, where it is installed.
func verifyUnit(t *testing.T, r *rooted) {
	t.Helper()
	for key, want := range map[string]string{"Type": "notify", "KillMode": "process", "Delegate": "yes", "LimitNOFILE": "1048576", "TasksMax": "infinity"} {
		if got := r.unit("balsa-server.service")[key]; len(got) != 1 || got[0] != want {
			t.Errorf("%s=%v, want %s", key, got, want)
		}
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("systemd-analyze is not here: the unit is not judged by systemd itself")
		return
	}
	if out, err := r.run("systemd-analyze", "verify", "/etc/systemd/system/balsa-server.service"); err != nil {
		t.Errorf("%s\n%v", out, err)
	}
}

// TestInstallRefuses: install.sh reports what cannot work before it writes anything.
func TestInstallRefuses(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"", "--server, --agent or --uninstall"},
		{"--server --agent", "not both"},
		{"--server --join a", "--token or --token-file"},
		{"--server --token balsa1.s.a.b.c", "needs --join"},
		{"--server --join a --token balsa1.a.a.b.c", "for agents"},
		{"--agent --join a --token balsa1.s.a.b.c", "for servers"},
		{"--agent --join a --token nonsense", "no join token"},
		{"--agent --join a --token-file /nowhere/token", "cannot be read"},
		{"--agent", "--join HOST"},
		{"--server --first --join a --token balsa1.s.a.b.c", "one of them"},
		{"--server --binary /nowhere/balsa", "not there"},
		{"--server --binary " + installer, "no Linux program"},
		{"--server --purge", "goes with --uninstall"},
		{"--server --wait soon", "number of seconds"},
		{"--server --first=no", "takes no value"},
		{"server", "unknown argument"},
	} {
		root := t.TempDir()
		cmd := exec.CommandContext(t.Context(), installer, strings.Fields(c.args)...)
		cmd.Env = append(os.Environ(), "DESTDIR="+root, "BALSA_URL=")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.says) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("install.sh %s: %v, want one line with %q:\n%s", c.args, err, c.says, out)
		}
		if entries, _ := os.ReadDir(root); len(entries) > 0 {
			t.Errorf("install.sh %s has written %v", c.args, entries)
		}
	}
}
