package process

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func procWith(t *testing.T, filesystems string) host {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "filesystems"), []byte(filesystems), 0o600); err != nil {
		t.Fatal(err)
	}
	return host{proc: dir}
}

func TestPreflightNamesWhatTheKernelLacks(t *testing.T) {
	for name, test := range map[string]struct {
		filesystems string
		want        string
	}{
		"complete":    {"nodev\tcgroup2\nnodev\toverlay\n\text4\n", ""},
		"cgroup v1":   {"nodev\tcgroup\nnodev\toverlay\n", ""},
		"no overlay":  {"nodev\tcgroup2\n\text4\n", "modprobe overlay"},
		"no cgroups":  {"nodev\toverlay\n\text4\n", "CONFIG_CGROUPS"},
		"similar":     {"nodev\tcgroup2\nnodev\toverlayish\n", "modprobe overlay"},
		"nothing yet": {"", "modprobe overlay"},
	} {
		t.Run(name, func(t *testing.T) {
			err := procWith(t, test.filesystems).kernel()
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestPreflightWantsRoot(t *testing.T) {
	h := procWith(t, "nodev\tcgroup2\nnodev\toverlay\n")
	h.euid = 1000
	if err := (Preflight{Node: true}).check(h); err == nil || !strings.Contains(err.Error(), "root is needed") {
		t.Errorf("got %v", err)
	}
}

func TestPreflightNamesEveryTakenPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	h := procWith(t, "nodev\tcgroup2\nnodev\toverlay\n")
	p := Preflight{Ports: []Port{{Address: "127.0.0.1", Number: taken.Addr().(*net.TCPAddr).Port, Flag: "port"}}}
	if err := p.check(h); err == nil || !strings.Contains(err.Error(), "is taken") || !strings.Contains(err.Error(), "--port") {
		t.Errorf("got %v", err)
	}
}
