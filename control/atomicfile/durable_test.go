package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteReplacesAndLeavesNothingElse(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, write := range map[string]func(string, []byte) error{"Write": Write, "WriteContent": WriteContent, "WriteCopy": WriteCopy} {
		if err := write(path, []byte(name)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != name {
			t.Fatalf("%s: %q, %v", name, got, err)
		}
		if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
			t.Fatalf("%s: mode %v, %v", name, st.Mode(), err)
		}
	}
	left(t, dir, 1)
}

func TestFailedWriteLeavesWhatWasThere(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "full") // a directory that is not empty cannot be replaced
	if err := os.MkdirAll(filepath.Join(path, "entry"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new")); err == nil {
		t.Fatal("a directory was replaced by a file")
	}
	left(t, dir, 1)
	if err := Write(filepath.Join(dir, "absent", "key"), nil); !os.IsNotExist(err) {
		t.Fatalf("into a directory that is not there: %v", err)
	}
}

func left(t *testing.T, dir string, want int) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != want {
		t.Fatalf("%d entries in the directory: %v, %v", len(entries), entries, err)
	}
}
