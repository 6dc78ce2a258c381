package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestOnlyProgramsWithFixedAddressesGiveUpTheirPages builds one program both ways.
func TestOnlyProgramsWithFixedAddressesGiveUpTheirPages(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[string]bool{"exe": true, "pie": false} {
		program := filepath.Join(dir, mode)
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildmode="+mode, "-o", program, source).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if got, err := linkedToFixedAddresses(program); err != nil || got != want {
			t.Errorf("buildmode %s: fixed addresses %t, %v; want %t", mode, got, err, want)
		}
	}
}
