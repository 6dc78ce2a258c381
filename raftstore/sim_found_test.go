package raftstore

import (
	"bytes"
	"errors"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// What the simulation found, each as small as it goes. What needs a cluster is a
// seed in TestSeedsThatFailedOnce.

func TestAWriteThatASnapshotSwallowedIsNotProposedAgain(t *testing.T) {
	o := newOutbox()
	sent, waiting := o.put([]byte("sent"), 0), (*wait)(nil)
	if ws, _ := o.take(3, 3); len(ws) != 1 {
		t.Fatal(ws)
	}
	waiting = o.put([]byte("waiting"), 0)
	o.lost()
	if r := <-sent.done; !errors.Is(r.err, ErrNoLeader) {
		t.Fatal(r.err)
	}
	if ws, _ := o.take(4, 4); len(ws) != 1 || ws[0] != waiting {
		t.Fatal("proposed again", ws)
	}
}

func TestARevocationIsNotProposedInALaterTerm(t *testing.T) {
	o := newOutbox()
	w := o.put([]byte("revoke"), 3)
	if ws, _ := o.take(4, 4); len(ws) != 0 {
		t.Fatal("the leader of term 4 was asked to revoke what ran out in term 3")
	}
	if r := <-w.done; !errors.Is(r.err, ErrNotLeader) {
		t.Fatal(r.err)
	}
}

// holding opens a disk of its own on a simulated one, as Raft has it.
func holding(t *testing.T) (*SimDisk, *disk) {
	var cfg Config
	cfg.setDefaults()
	sim := NewSimDisk(1, 1)
	sim.Attach(&cfg, func(<-chan struct{}) {})
	d := newDisk(cfg.testDisk.log, "memory", &cfg)
	d.live.Store(true)
	return sim, d
}

func TestTheAppendAfterACutWaitsForTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, d := holding(t)
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
		if err := d.StoreLogs([]*raft.Log{entry(3, 2)}); !errors.Is(err, ErrDiskFull) {
			t.Fatal(err)
		}
	})
}

func TestLogThatCannotBeRemovedDoesNotRefuseWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, d := holding(t)
		if err := d.StoreLogs([]*raft.Log{{Index: 1}, {Index: 2}}); err != nil {
			t.Fatal(err)
		}
		sim.Refuse(syscall.ENOSPC)
		if err := d.DeleteRange(1, 1); !errors.Is(err, ErrDiskFull) {
			t.Fatal(err)
		}
		if err := d.refused(); err != nil {
			t.Fatal("nothing would ever be written again:", err)
		}
	})
}

func TestTheLogKnowsTheEntryBeforeItsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, d := holding(t)
		b := boundary{disk: d}
		b.note(&raft.SnapshotMeta{Index: 61, Term: 4})
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

func TestASnapshotThatComesLateIsRefused(t *testing.T) {
	s := open(t, Config{InMemory: true})
	put(t, s, "/a", "1")
	var old bytes.Buffer
	if _, err := s.SaveSnapshot(t.Context(), &old); err != nil {
		t.Fatal(err)
	}
	put(t, s, "/a", "2")
	m := newMachine(newLessor())
	var now bytes.Buffer
	if _, err := s.SaveSnapshot(t.Context(), &now); err != nil {
		t.Fatal(err)
	}
	if err := m.restore(&now); err != nil {
		t.Fatal(err)
	}
	if err := m.restore(&old); !errors.Is(err, errLate) {
		t.Fatal("went back in time", err)
	}
}

func TestAHeartbeatNeverTakesTheTermBack(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	d := s.consensus.disk
	h := newHeartbeats(s.consensus.trans, d)
	h.raft.Store(s.Raft())
	var answered atomic.Bool
	beat := func() bool {
		rpc := raft.RPC{Command: &raft.AppendEntriesRequest{Term: s.Raft().CurrentTerm()}}
		return h.beside(rpc, func(raft.RPC) { answered.Store(true) })
	}
	if beat() || answered.Load() {
		t.Fatal("a leader answered a heartbeat beside its main goroutine")
	}
	d.term.Lock()
	defer d.term.Unlock()
	if beat() || answered.Load() {
		t.Fatal("a heartbeat was answered while the term changed")
	}
}

func TestNothingReachesRaftWhenTheDiskGivesUp(t *testing.T) {
	d := newDisk(nil, "", &Config{Logger: slog.Default()})
	_, trans := raft.NewInmemTransport("a")
	h := newHeartbeats(trans, d)
	waiting := make(chan struct{})
	go func() {
		h.enqueue(raft.RPC{}) // Raft is busy with the disk
		close(waiting)
	}()
	close(d.stop)
	<-waiting
	go func() {
		for range 100 {
			h.enqueue(raft.RPC{})
		}
		close(h.queue)
	}()
	if _, handed := <-h.Consumer(); handed {
		t.Fatal("Raft was handed a request after a write had failed for good")
	}
}

func TestASnapshotDoesNotRemoveWhatFollowsIt(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	d := s.consensus.disk
	put(t, s, "/a", "1")
	last, err := d.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	for behind, want := range map[uint64]bool{last - 1: false, last: true, last + 5: true} {
		d.before.Store(&raft.Log{Index: behind})
		if got := d.IsMonotonic(); got != want {
			t.Errorf("a log up to %d is emptied for a snapshot up to %d: %v", last, behind, got)
		}
	}
}
