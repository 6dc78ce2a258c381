package raftstore

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/mvcc"
	"github.com/balsahq/balsa/raftstore/raftlog"
)

// smallDisk mounts a file system of the given size and unmounts it in the end.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestAFullDiskRefusesWritesUntilThereIsSpace(t *testing.T) {
	everyLog(t, func(t *testing.T, store raftlog.Kind) {
		disk := smallDisk(t, "4m")
		s := open(t, Config{Dir: filepath.Join(disk, "d"), LogKind: store})
		rev := put(t, s, "/a", "first")
		ballast := filepath.Join(disk, "ballast")
		fillDisk(t, ballast)
		var err error
		for i := 0; err == nil && i < 100; i++ {
			_, err = s.Txn(t.Context(), mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/big", Value: make([]byte, 64<<10)}}})
			if err == nil {
				rev = s.View().Revision()
			}
		}
		if !errors.Is(err, ErrDiskFull) {
			t.Fatalf("a write to a full disk gave %v", err)
		}
		start := time.Now()
		if _, err := s.Txn(t.Context(), mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/b", Value: make([]byte, 64<<10)}}}); !errors.Is(err, ErrDiskFull) {
			t.Fatalf("the next write gave %v after %v", err, time.Since(start))
		}
		if !errors.Is(s.Err(), ErrDiskFull) {
			t.Fatal(s.Err())
		}
		if v, err := s.Barrier(t.Context()); err != nil || v.Revision() != rev || string(v.Get("/a").Value) != "first" {
			t.Fatal("reads must go on", err)
		}
		remove(t, ballast)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for {
			_, err := s.Txn(ctx, mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/c", Value: []byte("after")}}})
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("writes were not taken again: %v", err)
			}
			<-time.After(20 * time.Millisecond)
		}
		t.Logf("writes were taken again after %v", time.Since(start))
		want := s.View().Hash()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if s := open(t, Config{Dir: filepath.Join(disk, "d"), LogKind: store}); s.View().Hash() != want {
			t.Fatal("something was lost")
		}
	})
}

// brokenLog fails every write while broken is set.
type brokenLog struct {
	raftlog.File
	broken *atomic.Pointer[error]
	tried  *atomic.Int64 // writes that failed
	left   *atomic.Int64 // writes until the disk is full; nil for no such end
}

func (b brokenLog) fail() error {
	if b.left != nil && b.left.Add(-1) < 0 {
		return syscall.ENOSPC
	}
	if err := b.broken.Load(); err != nil {
		b.tried.Add(1)
		return *err
	}
	return nil
}

func (b brokenLog) StoreLogs(logs []*raft.Log) error {
	if err := b.fail(); err != nil {
		return err
	}
	return b.File.StoreLogs(logs)
}

func (b brokenLog) Set(k, v []byte) error {
	if err := b.fail(); err != nil {
		return err
	}
	return b.File.Set(k, v)
}

// breakable opens a store whose log fails when told to.
func breakable(t *testing.T, store raftlog.Kind) (s *Store, fail func(error), tried *atomic.Int64) {
	b := brokenLog{broken: new(atomic.Pointer[error]), tried: new(atomic.Int64)}
	s = open(t, Config{Dir: t.TempDir(), LogKind: store, wrapLog: func(l raftlog.File) raftlog.File { b.File = l; return b }})
	return s, func(err error) {
		if err == nil {
			b.broken.Store(nil)
		} else {
			b.broken.Store(&err)
		}
	}, b.tried
}

func TestAStoreOutlivesALogThatTakesNothing(t *testing.T) {
	everyLog(t, func(t *testing.T, store raftlog.Kind) {
		for cause, want := range map[error]error{syscall.ENOSPC: ErrDiskFull, syscall.EROFS: ErrDiskReadOnly, syscall.EIO: ErrDisk} {
			s, fail, tried := breakable(t, store)
			put(t, s, "/a", "1")
			fail(cause)
			if _, err := s.Txn(t.Context(), mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/b"}}}); !errors.Is(err, want) {
				t.Fatalf("%v gave %v", cause, err)
			}
			// Raft stands for election and cannot store its term, again and again.
			eventually(t, func() bool { return tried.Load() >= 4 })
			if !errors.Is(s.Err(), want) || s.View().Get("/a") == nil {
				t.Fatal(s.Err())
			}
			fail(nil)
			eventually(t, func() bool { return s.Err() == nil })
			put(t, s, "/b", "2")
		}
	})
}

// TestAStartThatRunsOutOfDiskSaysSo lets the disk fill up before each write a
// start makes, on a new directory and on one with data.
func TestAStartThatRunsOutOfDiskSaysSo(t *testing.T) {
	everyLog(t, func(t *testing.T, store raftlog.Kind) {
		for _, fresh := range []bool{true, false} {
			for n, opened := int64(0), false; !opened; n++ {
				dir := t.TempDir()
				if !fresh {
					filled(t, dir, store)
				}
				b := brokenLog{broken: new(atomic.Pointer[error]), tried: new(atomic.Int64), left: new(atomic.Int64)}
				b.left.Store(n)
				s, err := Open(Config{Dir: dir, LogKind: store, wrapLog: func(l raftlog.File) raftlog.File { b.File = l; return b }})
				if opened = err == nil; opened {
					s.Close()
					if n < 3 {
						t.Fatalf("opened with a disk that took %d writes", n)
					}
					continue
				}
				if !errors.Is(err, ErrDiskFull) {
					t.Fatalf("after %d writes: %v", n, err)
				}
				again := open(t, Config{Dir: dir, LogKind: store})
				put(t, again, "/a", "there is space now")
				again.Close()
			}
		}
	})
}

func TestAStoreClosesWhileItsLogTakesNothing(t *testing.T) {
	everyLog(t, func(t *testing.T, store raftlog.Kind) {
		s, fail, tried := breakable(t, store)
		fail(syscall.ENOSPC)
		if _, err := s.Txn(t.Context(), mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/b"}}}); !errors.Is(err, ErrDiskFull) {
			t.Fatal(err)
		}
		eventually(t, func() bool { return tried.Load() >= 3 })
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Txn(t.Context(), mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/b"}}}); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrDiskFull) {
			t.Fatal(err)
		}
	})
}

// eventually waits for something that other goroutines bring about.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("did not come about within a minute")
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestAFullOrReadOnlyDiskIsNamedAtStart(t *testing.T) {
	everyLog(t, func(t *testing.T, store raftlog.Kind) {
		disk := smallDisk(t, "1m")
		fillDisk(t, filepath.Join(disk, "ballast"))
		if s, err := Open(Config{Dir: filepath.Join(disk, "d"), LogKind: store}); !errors.Is(err, ErrDiskFull) {
			if err == nil {
				s.Close()
			}
			t.Fatal(err)
		}
		remove(t, filepath.Join(disk, "ballast"))
		again := open(t, Config{Dir: filepath.Join(disk, "d"), LogKind: store})
		put(t, again, "/a", "there is space now")

		ro := smallDisk(t, "4m")
		dir := filepath.Join(ro, "d")
		open(t, Config{Dir: dir, LogKind: store}).Close()
		if err := syscall.Mount("", ro, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Config{Dir: dir, LogKind: store}); !errors.Is(err, ErrDiskReadOnly) {
			t.Fatal(err)
		}
	})
}

// fillDisk takes all the space there is.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, n := range []int{64 << 10, 4 << 10} {
		b := bytes.Repeat([]byte{1}, n)
		for err == nil {
			_, err = f.Write(b)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
}
