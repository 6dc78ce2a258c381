package raftstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/raftlog"
)

// everyLog runs a test with each kind of log.
func everyLog(t *testing.T, test func(t *testing.T, store raftlog.Kind)) {
	for _, store := range raftlog.Kinds {
		t.Run(string(store), func(t *testing.T) { test(t, store) })
	}
}

// filled makes a directory with data in snapshot and log, and returns the hash
// of what it holds.
func filled(t testing.TB, dir string, store raftlog.Kind) uint64 {
	t.Helper()
	s, err := Open(Config{Dir: dir, ClusterID: "c1", LogKind: store})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		put(t, s, fmt.Sprintf("/k/%d", i%30), strings.Repeat("v", 200+i))
		if i == 20 {
			if err := s.Snapshot(); err != nil {
				t.Fatal(err)
			}
		}
	}
	sum := s.View().Hash()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return sum
}

func TestADirectoryOpensWithWhatItHeld(t *testing.T) {
	everyLog(t, func(t *testing.T, store raftlog.Kind) {
		dir := t.TempDir()
		want := filled(t, dir, store)
		s := open(t, Config{Dir: dir, ClusterID: "c1", LogKind: store})
		if got := s.View().Hash(); got != want {
			t.Fatalf("hash %x, want %x", got, want)
		}
		if s.ClusterID() != "c1" {
			t.Fatal(s.ClusterID())
		}
		if _, err := s.ViewAt(2); err != nil {
			t.Fatal("history did not survive", err)
		}
	})
}

func TestTheServerIDStays(t *testing.T) {
	everyLog(t, func(t *testing.T, store raftlog.Kind) {
		dir := t.TempDir()
		a := open(t, Config{Dir: dir, LogKind: store})
		id := a.ServerID()
		a.Close()
		if b := open(t, Config{Dir: dir, LogKind: store}); b.ServerID() != id || id == "" {
			t.Fatalf("%q became %q", id, b.ServerID())
		}
	})
}

// refusal is a way to damage a directory, and what opening it must say.
type refusal struct {
	name   string
	cfg    Config
	damage func(t *testing.T, dir string)
	want   error
	names  string // the file the error must name
}

// newest is a file of the newest snapshot.
func newest(t *testing.T, dir, file string) string {
	t.Helper()
	m, err := filepath.Glob(filepath.Join(dir, "snapshots", "*", file))
	if err != nil || len(m) == 0 {
		t.Fatal("no snapshot", err)
	}
	return m[len(m)-1]
}

// segments are the files of a WAL, oldest first.
func segments(t *testing.T, dir string) []string {
	t.Helper()
	m, err := filepath.Glob(filepath.Join(dir, "wal", "*.wal"))
	if err != nil || len(m) == 0 {
		t.Fatal("no segment", err)
	}
	return m
}

var refusals = []refusal{
	{"of another cluster", Config{ClusterID: "c2"}, func(*testing.T, string) {}, ErrWrongCluster, ""},
	{"of a newer version", Config{}, func(t *testing.T, dir string) {
		write(t, filepath.Join(dir, "meta.json"), []byte(`{"format":99,"clusterID":"c1","serverID":"x","more":true}`))
	}, ErrNewerVersion, "meta.json"},
	{"with a broken identity", Config{}, func(t *testing.T, dir string) {
		write(t, filepath.Join(dir, "meta.json"), []byte(`{"format":1,`))
	}, ErrCorrupt, "meta.json"},
	{"without its identity", Config{}, func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "meta.json")) }, ErrCorrupt, "meta.json"},
	{"with a flipped byte in a snapshot", Config{}, func(t *testing.T, dir string) {
		flipAt(t, newest(t, dir, "state.bin"), []byte("vvvvvvvv"))
	}, ErrCorrupt, "state.bin"},
	{"with a truncated snapshot", Config{}, func(t *testing.T, dir string) { truncate(t, newest(t, dir, "state.bin")) }, ErrCorrupt, "state.bin"},
	{"with a truncated snapshot description", Config{}, func(t *testing.T, dir string) { truncate(t, newest(t, dir, "meta.json")) }, ErrCorrupt, "meta.json"},
	{"with a snapshot of a newer version", Config{}, func(t *testing.T, dir string) {
		b := read(t, newest(t, dir, "state.bin"))
		b[len(snapshotMagic)] = 9
		write(t, newest(t, dir, "state.bin"), b)
	}, ErrNewerVersion, "state.bin"},
}

var boltRefusals = []refusal{
	{"without its log", Config{}, func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "raft.db")) }, ErrCorrupt, "raft.db"},
	{"with an empty log", Config{}, func(t *testing.T, dir string) { write(t, filepath.Join(dir, "raft.db"), nil) }, ErrCorrupt, "raft.db"},
	{"with a truncated log", Config{}, func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, "raft.db")) }, ErrCorrupt, "raft.db"},
	{"with a flipped byte in a log entry", Config{}, func(t *testing.T, dir string) {
		flipAt(t, filepath.Join(dir, "raft.db"), []byte("/k/5"))
	}, ErrCorrupt, "raft.db"},
	{"with the last entry hidden", Config{}, func(t *testing.T, dir string) {
		db, err := bbolt.Open(filepath.Join(dir, "raft.db"), 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bbolt.Tx) error {
			k, _ := tx.Bucket([]byte("logs")).Cursor().Last()
			return tx.Bucket([]byte("logs")).Delete(k)
		})
		if err = errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
	}, ErrCorrupt, "raft.db"},
	{"with its first meta page damaged", Config{}, func(t *testing.T, dir string) { flipByte(t, filepath.Join(dir, "raft.db"), 60) }, ErrCorrupt, "raft.db"},
	{"with its second meta page damaged", Config{}, func(t *testing.T, dir string) {
		flipByte(t, filepath.Join(dir, "raft.db"), os.Getpagesize()+60)
	}, ErrCorrupt, "raft.db"},
	{"with its term damaged", Config{}, func(t *testing.T, dir string) {
		flipAt(t, filepath.Join(dir, "raft.db"), []byte("CurrentTerm\x00"))
	}, ErrCorrupt, "raft.db"},
}

var walRefusals = []refusal{
	{"without its log", Config{}, func(t *testing.T, dir string) {
		if err := os.RemoveAll(filepath.Join(dir, "wal")); err != nil {
			t.Fatal(err)
		}
	}, ErrCorrupt, "wal"},
	{"with an empty segment", Config{}, func(t *testing.T, dir string) { write(t, segments(t, dir)[0], nil) }, ErrCorrupt, ".wal"},
	{"without its segment", Config{}, func(t *testing.T, dir string) { remove(t, segments(t, dir)[0]) }, ErrCorrupt, ".wal"},
	{"with a truncated segment", Config{}, func(t *testing.T, dir string) { truncate(t, segments(t, dir)[0]) }, ErrCorrupt, ".wal"},
	{"with the last byte missing", Config{}, func(t *testing.T, dir string) {
		b := read(t, segments(t, dir)[0])
		write(t, segments(t, dir)[0], b[:len(b)-1-7])
	}, ErrCorrupt, ".wal"},
	{"with a damaged head of a segment", Config{}, func(t *testing.T, dir string) { flipByte(t, segments(t, dir)[0], 20) }, ErrCorrupt, ".wal"},
	{"with a flipped byte in a log entry", Config{}, func(t *testing.T, dir string) {
		flipAt(t, segments(t, dir)[0], []byte("/k/5"))
	}, ErrCorrupt, ".wal"},
	{"with a flipped byte in the last batch", Config{}, func(t *testing.T, dir string) {
		flipByte(t, segments(t, dir)[0], len(read(t, segments(t, dir)[0]))-20)
	}, ErrCorrupt, ".wal"},
	{"without its list of segments", Config{}, func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "wal", "meta")) }, ErrCorrupt, "wal/meta"},
	{"with a truncated list of segments", Config{}, func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, "wal", "meta")) }, ErrCorrupt, "wal/meta"},
	{"with its term damaged", Config{}, func(t *testing.T, dir string) {
		flipAt(t, filepath.Join(dir, "wal", "vote"), []byte("CurrentTerm"))
	}, ErrCorrupt, "wal/vote"},
	{"with an older vote damaged", Config{}, func(t *testing.T, dir string) {
		flipByte(t, filepath.Join(dir, "wal", "vote"), 2)
	}, ErrCorrupt, "wal/vote"},
	{"without its vote", Config{}, func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "wal", "vote")) }, ErrCorrupt, "wal/vote"},
	{"with a truncated vote", Config{}, func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, "wal", "vote")) }, ErrCorrupt, "wal/vote"},
	{"with a log of a newer version", Config{}, func(t *testing.T, dir string) {
		line := []byte(`{"Format":2}`)
		write(t, filepath.Join(dir, "wal", "meta"), fmt.Appendf(line, "\n%08x\n", crc32.Checksum(line, diskfile.Castagnoli)))
	}, ErrNewerVersion, "wal/meta"},
	{"with a segment the list cannot know", Config{}, func(t *testing.T, dir string) {
		write(t, filepath.Join(dir, "wal", "00000000000000000099-0000000000000063.wal"), nil)
	}, ErrCorrupt, "wal/meta"},
}

func TestADirectoryIsRefused(t *testing.T) {
	everyLog(t, func(t *testing.T, store raftlog.Kind) {
		own := map[raftlog.Kind][]refusal{raftlog.WAL: walRefusals, raftlog.BoltDB: boltRefusals}[store]
		for _, c := range append(append([]refusal{}, refusals...), own...) {
			t.Run(c.name, func(t *testing.T) { c.check(t, store) })
		}
	})
}

func (c refusal) check(t *testing.T, store raftlog.Kind) {
	dir := t.TempDir()
	want := filled(t, dir, store)
	saved := t.TempDir()
	if err := os.CopyFS(filepath.Join(saved, "d"), os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	c.damage(t, dir)
	before := describe(t, dir)
	c.cfg.Dir, c.cfg.LogKind = dir, store
	s, err := Open(c.cfg)
	if err == nil {
		s.Close()
		t.Fatal("opened")
	}
	if !errors.Is(err, c.want) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), c.names) {
		t.Fatalf("error is %q", err)
	}
	t.Log(err)
	if after := describe(t, dir); after != before {
		t.Fatalf("files were changed:\n%s\n%s", before, after)
	}
	// The backup still opens with everything.
	r := open(t, Config{Dir: filepath.Join(saved, "d"), LogKind: store})
	if r.View().Hash() != want {
		t.Fatal("the backup differs")
	}
}

// TestNoFlippedByteGoesUnnoticed flips bytes all over the log: the store opens
// with exactly what it held, or not at all.
func TestNoFlippedByteGoesUnnoticed(t *testing.T) {
	everyLog(t, func(t *testing.T, store raftlog.Kind) {
		base := t.TempDir()
		want := filled(t, base, store)
		files := []string{"raft.db"}
		if store == raftlog.WAL {
			files = []string{"wal/meta", "wal/vote", "wal/" + filepath.Base(segments(t, base)[0])}
		}
		flips := 60
		if n, err := strconv.Atoi(os.Getenv("RAFTSTORE_FLIPS")); err == nil {
			flips = n
		}
		for _, file := range files {
			size, refused := len(read(t, filepath.Join(base, file))), 0
			for at := 5; at < size; at += size/flips + 1 {
				if !flipped(t, base, file, store, at, want) {
					refused++
				}
			}
			t.Logf("%s: %d refused", file, refused)
		}
	})
}

// flipped opens a copy of base with one bit of a file flipped, and reports
// whether it could.
func flipped(t *testing.T, base, file string, store raftlog.Kind, at int, want uint64) bool {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.CopyFS(dir, os.DirFS(base)); err != nil {
		t.Fatal(err)
	}
	flipByte(t, filepath.Join(dir, file), at)
	s, err := Open(Config{Dir: dir, LogKind: store})
	if err != nil {
		return false
	}
	defer s.Close()
	if got := s.View().Hash(); got != want {
		t.Errorf("byte %d of %s flipped: opened with hash %x, want %x", at, file, got, want)
	}
	return true
}

func TestADirectoryKeepsItsKindOfLog(t *testing.T) {
	everyLog(t, func(t *testing.T, store raftlog.Kind) {
		dir := t.TempDir()
		want := filled(t, dir, store)
		other := raftlog.Kinds[0]
		if other == store {
			other = raftlog.Kinds[1]
		}
		if _, err := Open(Config{Dir: dir, LogKind: other}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), string(store)) || !strings.Contains(err.Error(), string(other)) {
			t.Fatal("opened with the other kind of log:", err)
		}
		if s := open(t, Config{Dir: dir}); s.View().Hash() != want {
			t.Fatal("opened without a kind, the directory does not have its data")
		} else if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		remove(t, filepath.Join(dir, "meta.json"))
		if err := os.RemoveAll(filepath.Join(dir, "snapshots")); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Config{Dir: dir, LogKind: other}); !errors.Is(err, ErrCorrupt) {
			t.Fatal("a log of the other kind, with data and without an identity, was passed over:", err)
		}
	})
}

func TestALockedDirectoryIsRefused(t *testing.T) {
	everyLog(t, func(t *testing.T, store raftlog.Kind) {
		dir := t.TempDir()
		open(t, Config{Dir: dir, LogKind: store})
		if _, err := Open(Config{Dir: dir, LogKind: store}); !errors.Is(err, ErrLocked) {
			t.Fatal(err)
		}
	})
}

func TestAFirstStartThatDiedIsStartedOver(t *testing.T) {
	everyLog(t, func(t *testing.T, store raftlog.Kind) {
		dir := t.TempDir()
		s := open(t, Config{Dir: dir, LogKind: store})
		id := s.ServerID()
		s.Close()
		remove(t, filepath.Join(dir, "meta.json"))
		if s := open(t, Config{Dir: dir, LogKind: store}); s.ServerID() == id {
			t.Fatal("kept an identity that was never made")
		}
	})
}

func TestAnUnfinishedSnapshotIsDropped(t *testing.T) {
	everyLog(t, func(t *testing.T, store raftlog.Kind) {
		dir := t.TempDir()
		want := filled(t, dir, store)
		tmp := filepath.Join(dir, "snapshots", "9-99-1.tmp")
		if err := os.Mkdir(tmp, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(tmp, "state.bin"), []byte("half"))
		if s := open(t, Config{Dir: dir, LogKind: store}); s.View().Hash() != want {
			t.Fatal("differs")
		}
		if _, err := os.Stat(tmp); !os.IsNotExist(err) {
			t.Fatal(err)
		}
	})
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, path string) {
	t.Helper()
	b := read(t, path)
	write(t, path, b[:len(b)/2])
}

// flipAt flips a bit wherever mark is found: old pages may hold it too.
func flipAt(t *testing.T, path string, mark []byte) {
	t.Helper()
	b := read(t, path)
	if !bytes.Contains(b, mark) {
		t.Fatalf("%q is not in %s", mark, path)
	}
	bad := bytes.Clone(mark)
	bad[len(bad)-1] ^= 1
	write(t, path, bytes.ReplaceAll(b, mark, bad))
}

// describe describes every file of a directory but the lock.
func describe(t *testing.T, dir string) string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() && e.Name() != "lock" {
			files[path] = fmt.Sprintf("%x", len(read(t, path)))
			if e.Name() != "raft.db" { // opening a bbolt file writes a meta page
				files[path] += fmt.Sprint(bytes.Count(read(t, path), []byte{0}))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.MarshalIndent(files, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func flipByte(t *testing.T, path string, at int) {
	t.Helper()
	write(t, path, flip(read(t, path), at))
}
