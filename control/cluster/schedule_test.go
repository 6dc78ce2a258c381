package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestASnapshotWhoseNameMayNotLastIsRemoved(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, unfinishedPrefix+"1"), filepath.Join(dir, "balsa-20260101T000000Z-r1.snapshot")
	if err := os.WriteFile(from, []byte("archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	fault, synced := errors.New("input/output error"), ""
	err := publish(from, to, func(dir string) error { synced = dir; return fault })
	if !errors.Is(err, fault) || synced != dir {
		t.Errorf("%v after syncing %q", err, synced)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}
