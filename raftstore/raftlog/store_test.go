package raftlog

import (
	"errors"
	"log/slog"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/errdefs"
	"github.com/balsahq/balsa/raftstore/raftstoretest"
)

// newOnDisk returns a Store on a simulated disk, as Raft has it when it runs.
func newOnDisk(*testing.T) (*raftstoretest.Disk, *Store) {
	sim := raftstoretest.NewDisk(1, 1)
	d := New(sim.Attach(func(<-chan struct{}) {}).File, "memory", slog.New(slog.DiscardHandler))
	d.SetRunning()
	return sim, d
}

func TestTheAppendAfterACutWaitsForTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, d := newOnDisk(t)
		entry := func(i, term uint64) *raft.Log { return &raft.Log{Index: i, Term: term} }
		if err := d.StoreLogs([]*raft.Log{entry(1, 1), entry(2, 1), entry(3, 1)}); err != nil {
			t.Fatal(err)
		}
		if err := d.DeleteRange(2, 3); err != nil {
			t.Fatal(err)
		}
		sim.Refuse(syscall.ENOSPC)
		time.AfterFunc(3*time.Second, func() { sim.Refuse(nil) })
		if err := d.StoreLogs([]*raft.Log{entry(2, 2)}); err != nil {
			t.Fatal("Raft now believes in entries 2 and 3, which are gone:", err)
		}
		sim.Refuse(syscall.ENOSPC)
		if err := d.StoreLogs([]*raft.Log{entry(3, 2)}); !errors.Is(err, errdefs.ErrDiskFull) {
			t.Fatal(err)
		}
	})
}

func TestLogThatCannotBeRemovedDoesNotRefuseWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, d := newOnDisk(t)
		if err := d.StoreLogs([]*raft.Log{{Index: 1}, {Index: 2}}); err != nil {
			t.Fatal(err)
		}
		sim.Refuse(syscall.ENOSPC)
		if err := d.DeleteRange(1, 1); !errors.Is(err, errdefs.ErrDiskFull) {
			t.Fatal(err)
		}
		if err := d.Refused(); err != nil {
			t.Fatal("nothing would ever be written again:", err)
		}
	})
}

func TestTheLogKnowsTheEntryBeforeItsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, d := newOnDisk(t)
		d.SnapshotEnd.Set(&raft.SnapshotMeta{Index: 61, Term: 4})
		if err := d.StoreLogs([]*raft.Log{{Index: 62, Term: 5}}); err != nil {
			t.Fatal(err)
		}
		var l raft.Log
		if err := d.GetLog(61, &l); err != nil || l.Index != 61 || l.Term != 4 {
			t.Fatal("a leader that asks for it would send the snapshot again and again", l, err)
		}
		if err := d.GetLog(60, &l); !errors.Is(err, raft.ErrLogNotFound) {
			t.Fatal(err)
		}
	})
}

func TestASnapshotDoesNotRemoveWhatFollowsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, d := newOnDisk(t)
		if err := d.StoreLogs(entries(1, 9, 1)); err != nil {
			t.Fatal(err)
		}
		for end, want := range map[uint64]bool{8: false, 9: true, 14: true} {
			d.SnapshotEnd.Set(&raft.SnapshotMeta{Index: end})
			if got := d.IsMonotonic(); got != want {
				t.Errorf("a log up to entry 9 is emptied for a snapshot up to %d: %v", end, got)
			}
		}
	})
}

// TestEveryKindOfLogKeepsEntriesAndValues stores, replaces the end, removes the beginning, and reads all of it again after the file
// was opened anew.
func TestEveryKindOfLogKeepsEntriesAndValues(t *testing.T) {
	for _, kind := range Kinds {
		t.Run(string(kind), func(t *testing.T) {
			dir := t.TempDir()
			f := openFile(t, dir, kind)
			steps := []error{
				f.StoreLogs(entries(1, 600, 1)), f.DeleteRange(400, 600), f.StoreLogs(entries(400, 300, 2)), f.DeleteRange(1, 299),
				f.Set([]byte("k"), []byte("v")), f.Set([]byte("k"), []byte{}), f.Set([]byte("term"), []byte{1, 2, 3, 4, 5, 6, 7, 8}),
				f.StoreLogs([]*raft.Log{{Index: 700, Term: 3, Type: raft.LogConfiguration, Data: []byte("d"), Extensions: []byte("e")}}),
			}
			if err := errors.Join(append(steps, f.Close())...); err != nil {
				t.Fatal(err)
			}
			f = openFile(t, dir, kind)
			defer f.Close()
			first, err1 := f.FirstIndex()
			last, err2 := f.LastIndex()
			if first != 300 || last != 700 || err1 != nil || err2 != nil {
				t.Fatal(first, last, err1, err2)
			}
			var l raft.Log
			for i := first; i < last; i++ {
				want := entry(i, 1)
				if i >= 400 {
					want = entry(i, 2)
				}
				if err := f.GetLog(i, &l); err != nil || l.Index != i || l.Term != want.Term || l.Type != want.Type || string(l.Data) != string(want.Data) || len(l.Extensions) > 0 {
					t.Fatal(i, l, err)
				}
			}
			if err := f.GetLog(700, &l); err != nil || l.Type != raft.LogConfiguration || string(l.Data) != "d" || string(l.Extensions) != "e" {
				t.Error(l, err)
			}
			for _, i := range []uint64{299, 701} {
				if err := f.GetLog(i, &l); !errors.Is(err, raft.ErrLogNotFound) {
					t.Error(i, err)
				}
			}
			v, err1 := f.Get([]byte("k"))
			term, err2 := f.Get([]byte("term"))
			if len(v) != 0 || len(term) != 8 || err1 != nil || err2 != nil {
				t.Error(v, term, err1, err2)
			}
			if _, err := f.Get([]byte("never set")); err == nil || err.Error() != "not found" { // the text by which Raft knows it
				t.Error(err)
			}
		})
	}
}

func FuzzCommitMark(f *testing.F) {
	f.Add([]byte("123456789012"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != 12 && decodeCommitMark(b) != 0 {
			t.Fatal("a mark of another length counts")
		}
	})
}
