package runtime

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// DefaultHandler is the handler of pods without a RuntimeClass; it is the runc that Balsa carries.
const DefaultHandler = "runc"

// Handler is a runtime that a RuntimeClass can name. Its program is an OCI runtime, which Balsa's own shim calls, or a shim of
// its own, which has the file name containerd-shim-NAME-VERSION.
type Handler struct{ Name, Path string }

var shimName = regexp.MustCompile(`^containerd-shim-([a-z0-9-]+)-(v[0-9]+)$`)

// Type is containerd's name of the handler's kind.
func (h Handler) Type() string {
	if m := shimName.FindStringSubmatch(filepath.Base(h.Path)); m != nil {
		return "io.containerd." + m[1] + "." + m[2]
	}
	return "io.containerd.runc.v2"
}

// IsShim reports whether the program is a shim.
func (h Handler) IsShim() bool { return shimName.MatchString(filepath.Base(h.Path)) }

// Validate returns what is wrong with the handler's name or program.
func (h Handler) Validate() error {
	if problems := validation.IsDNS1123Label(h.Name); len(problems) > 0 {
		return fmt.Errorf("runtime handler %q: %s", h.Name, problems[0])
	}
	if h.Name == DefaultHandler {
		return fmt.Errorf("runtime handler %q: this is the default one, which Balsa carries; choose another name", h.Name)
	}
	st, err := os.Stat(h.Path)
	if !filepath.IsAbs(h.Path) || err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return fmt.Errorf("runtime handler %q: %q is not the absolute path of a program", h.Name, h.Path)
	}
	return nil
}

// ProgramDirs are where package managers and installers of runtimes put programs.
var ProgramDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/opt/kata/bin"}

// ociRuntimes are the programs, other than shims, that are offered as handlers when they are installed.
var ociRuntimes = map[string]string{"crun": "crun", "youki": "youki", "nvidia-container-runtime": "nvidia"}

// Installed returns the handlers of the programs in dirs, by name. Of two with one name the first folder's counts.
func Installed(dirs []string) []Handler {
	var out []Handler
	add := func(h Handler) {
		if h.Validate() == nil && !slices.ContainsFunc(out, func(o Handler) bool { return o.Name == h.Name }) {
			out = append(out, h)
		}
	}
	for _, dir := range dirs {
		for program, name := range ociRuntimes {
			add(Handler{name, filepath.Join(dir, program)})
		}
		shims, _ := filepath.Glob(filepath.Join(dir, "containerd-shim-*"))
		for _, path := range shims {
			if m := shimName.FindStringSubmatch(filepath.Base(path)); m != nil {
				add(Handler{m[1], path})
			}
		}
	}
	slices.SortFunc(out, func(a, b Handler) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// allHandlers returns the configured handlers and those that are installed under other names.
func (c Config) allHandlers() []Handler {
	out := slices.Clone(c.Handlers)
	for _, h := range Installed(c.ProgramDirs) {
		if !slices.ContainsFunc(out, func(o Handler) bool { return o.Name == h.Name }) {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(a, b Handler) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// dropIns returns the pattern of the files that containerd reads beside its configuration, and a digest of what they hold:
// containerd reads them when it starts only.
func (c Config) dropIns() (pattern, digest string, err error) {
	if c.DropInDir == "" {
		return "", "", nil
	}
	pattern = filepath.Join(c.DropInDir, "*.toml")
	files, err := filepath.Glob(pattern)
	if err != nil {
		return "", "", fmt.Errorf("drop-ins of containerd: %w", err)
	}
	sum := sha256.New()
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", "", fmt.Errorf("drop-ins of containerd: %w", err)
		}
		fmt.Fprintf(sum, "%s %d\n%s", f, len(b), b)
	}
	return pattern, fmt.Sprintf("%x", sum.Sum(nil)), nil
}
