package runtime

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func program(t *testing.T, path string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestInstalledRuntimesAreHandlers(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	crun := program(t, a+"/crun", 0o755)
	program(t, b+"/crun", 0o755)
	gvisor := program(t, a+"/containerd-shim-runsc-v1", 0o755)
	kata := program(t, b+"/containerd-shim-kata-qemu-v2", 0o755)
	program(t, b+"/containerd-shim-runc-v2", 0o755) // its name is the default handler's
	program(t, b+"/containerd-shim-notes.txt", 0o755)
	program(t, b+"/youki", 0o644)
	want := []Handler{{"crun", crun}, {"kata-qemu", kata}, {"runsc", gvisor}}
	if got := Installed([]string{a, b}); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if s := want[1].Type(); s != "io.containerd.kata-qemu.v2" || want[0].Type() != "io.containerd.runc.v2" || want[0].IsShim() {
		t.Error(s)
	}
	c := Config{Handlers: []Handler{{"crun", kata}}, ProgramDirs: []string{a}}
	if got := c.allHandlers(); !slices.Equal(got, []Handler{{"crun", kata}, {"runsc", gvisor}}) {
		t.Errorf("with one that is configured: %v", got)
	}
}

func TestWrongHandlersAreRefused(t *testing.T) {
	dir := t.TempDir()
	good, notes := program(t, dir+"/crun", 0o755), program(t, dir+"/notes", 0o644)
	for _, h := range []Handler{{"runc", good}, {"Crun", good}, {"", good}, {"crun", "crun"}, {"crun", dir}, {"crun", notes}, {"crun", dir + "/none"}} {
		if h.Validate() == nil {
			t.Errorf("%+v is not refused", h)
		}
	}
	if err := (Handler{"crun", good}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestConfigurationChangesWithHandlersAndDropIns(t *testing.T) {
	dir := t.TempDir()
	c := Config{DataDir: dir, RunDir: dir, BinDir: dir, CNIConfDir: dir, DropInDir: dir + "/drop", Handlers: []Handler{{"crun", program(t, dir+"/crun", 0o755)}}}
	write := func() (bool, string) {
		t.Helper()
		changed, err := c.writeConfig()
		if err != nil {
			t.Fatal(err)
		}
		b, _ := os.ReadFile(c.configFile())
		return changed, string(b)
	}
	_, text := write()
	for _, want := range []string{`runtimes."crun"]`, `BinaryName = "` + dir + `/crun"`, `imports = ["` + dir + `/drop/*.toml"]`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if changed, _ := write(); changed {
		t.Error("changed without a reason")
	}
	program(t, dir+"/drop/one.toml", 0o644)
	if changed, _ := write(); !changed {
		t.Error("a new drop-in does not count")
	}
	c.Handlers[0].Path = program(t, dir+"/containerd-shim-wasm-v1", 0o755)
	if changed, text := write(); !changed || !strings.Contains(text, `runtime_type = "io.containerd.wasm.v1"`) {
		t.Error(text)
	}
}
