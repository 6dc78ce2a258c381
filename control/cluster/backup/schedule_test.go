package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balsahq/balsa/control/cluster/archive"
)

func TestASnapshotWhoseNameMayNotLastIsRemoved(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, unfinishedPrefix+"1"), filepath.Join(dir, "balsa-20260101T000000Z-r1.snapshot")
	if err := os.WriteFile(from, []byte("archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	fault, synced := errors.New("input/output error"), ""
	err := renameDurably(from, to, func(dir string) error { synced = dir; return fault })
	if !errors.Is(err, fault) || synced != dir {
		t.Errorf("%v after syncing %q", err, synced)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// fakeArchiver writes what it is told, or fails.
type fakeArchiver struct {
	mu       sync.Mutex
	fail     error
	revision int64
	torn     bool
}

// will has the next archives fail or torn, and returns how many were written.
func (f *fakeArchiver) will(fail error, torn bool) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail, f.torn = fail, torn
	return f.revision
}

func (f *fakeArchiver) WriteArchive(_ context.Context, w io.Writer) (archive.Trailer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision++
	fmt.Fprintln(w, f.revision)
	return archive.Trailer{Revision: f.revision}, f.fail
}

func (f *fakeArchiver) VerifyArchive(r io.Reader) (archive.Header, archive.Trailer, error) {
	var t archive.Trailer
	_, err := fmt.Fscan(r, &t.Revision)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.torn {
		t.Revision--
	}
	return archive.Header{}, t, err
}

func TestSnapshotsAreSavedOnScheduleAndPruned(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "snapshots")
	synctest.Test(t, func(t *testing.T) {
		leads := make(chan struct{})
		var leading atomic.Bool
		a := &fakeArchiver{}
		cfg := Config{Archiver: a, Dir: dir, Every: 12 * time.Hour, Keep: 3, Leading: leading.Load, LeaderChanged: func() <-chan struct{} { return leads }, Logger: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Run(ctx, cfg) }()
		files := func() int {
			synctest.Wait()
			all, err := filepath.Glob(filepath.Join(dir, "*"))
			hidden, err2 := filepath.Glob(filepath.Join(dir, ".*"))
			if err != nil || err2 != nil || len(hidden) > 0 {
				t.Fatalf("%v %v, left: %v", err, err2, hidden)
			}
			return len(all)
		}
		time.Sleep(24 * time.Hour)
		if files() != 0 {
			t.Fatal("a server that does not lead saves snapshots")
		}
		leading.Store(true)
		time.Sleep(time.Minute)
		if files() != 1 {
			t.Fatalf("%d files soon after leading", files())
		}
		time.Sleep(5 * 24 * time.Hour)
		if n := files(); n != 3 || a.will(syscall.ENOSPC, false) != 11 {
			t.Fatalf("%d files, %d saved", n, a.revision)
		}
		time.Sleep(13 * time.Hour)
		if n := files(); n != 3 || a.will(nil, true) < 12 {
			t.Fatalf("full disk: %d files", n)
		}
		time.Sleep(time.Hour)
		before := files()
		a.will(nil, false)
		time.Sleep(6 * time.Minute)
		if before != 3 || files() != 3 || newestTime(dir).Before(time.Now().Add(-time.Hour)) {
			t.Fatalf("after the disk: %d files, newest %v at %v", files(), newestTime(dir), time.Now())
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}
