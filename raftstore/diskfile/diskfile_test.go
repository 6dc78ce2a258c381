package diskfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/balsahq/balsa/raftstore/errdefs"
)

func TestAFileIsReplacedAsAWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, text := range []string{"first", "second, which is longer", ""} {
		if err := WriteSynced(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Fatalf("%q, %v, want %q", got, err, text)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteSynced(filepath.Join(dir, "taken"), []byte("x")); err == nil {
		t.Fatal("a directory was replaced")
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.tmp")); err != nil || len(left) > 0 {
		t.Fatalf("left behind: %v, %v", left, err)
	}
}

func TestAnErrorOfTheDiskNamesTheFileAndWhatToDo(t *testing.T) {
	for cause, want := range map[error]error{syscall.ENOSPC: errdefs.ErrDiskFull, syscall.EDQUOT: errdefs.ErrDiskFull, syscall.EROFS: errdefs.ErrDiskReadOnly, syscall.EIO: errdefs.ErrDisk} {
		err := Error("/data/wal", &os.PathError{Op: "write", Path: "/data/wal", Err: cause})
		if !errors.Is(err, want) || !strings.Contains(err.Error(), "/data/wal") {
			t.Errorf("%v: %v, want %v", cause, err, want)
		}
	}
	if err := Corrupt("/data/wal", errors.New("torn")); !errors.Is(err, errdefs.ErrCorrupt) || !strings.Contains(err.Error(), "/data/wal: torn; nothing was changed") {
		t.Error(err)
	}
}

func TestAPacedFileHoldsWhatWasWritten(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := &PacedFile{File: file, Applied: func() uint64 { return 1 }}
	text := strings.Repeat("0123456789abcdef", PaceBytes/8)
	if n, err := w.Write([]byte(text)); err != nil || n != len(text) || w.Size != int64(n) {
		t.Fatal(n, err, w.Size)
	}
	if got, err := os.ReadFile(file.Name()); err != nil || string(got) != text {
		t.Fatal("differs", err)
	}
}
