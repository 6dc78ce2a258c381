package raftstore_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/simnet"
)

// lagging runs fn on a cluster of three whose first server leads, and then heals
// the cluster, waits until all hold the same and reports what must not have been,
// at any time: a leader that calls committed what its disk does not have, a server
// that says that it has what its disk does not have, two states after one entry.
func lagging(t *testing.T, fn func(t *testing.T, w *world, lead *run)) {
	h := newHistory()
	synctest.Test(t, func(t *testing.T) {
		h.start = time.Now()
		w := newWorld(1, traits{servers: 3, slowClock: -1, link: simnet.Link{MaxDelay: time.Millisecond}, snapshotEntries: 1 << 40, trailing: 1024}, h)
		defer w.finish()
		eventually(t, func() bool {
			if first := w.leader(); first != nil && first != w.servers[0] {
				_ = w.runOf(first).store.TransferLeadership(t.Context(), w.servers[0].id) // until it works
			}
			return w.runOf(w.servers[0]).store.Leading()
		})
		fn(t, w, w.runOf(w.servers[0]))
	})
	for _, f := range h.faults {
		t.Error(f)
	}
}

func (r *run) put(ctx context.Context, key string) error {
	_, err := r.store.Txn(ctx, raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpPut, Key: key, Value: []byte("v")}}})
	return err
}

// begin puts a key without waiting for the answer, and returns when each of the
// given servers has the entry on its disk.
func (w *world) begin(t *testing.T, r *run, key string, on ...*server) (index uint64, answer chan error) {
	t.Helper()
	answer = make(chan error, 1)
	before := r.store.Progress()
	w.zombies.Go(func() { answer <- r.put(w.ctx, key) })
	index = before.LastIndex + 1
	eventually(t, func() bool {
		for _, s := range on {
			if !s.disk.Holds(index, before.Term) {
				return false
			}
		}
		return true
	})
	time.Sleep(50 * time.Millisecond) // the answers arrive
	return index, answer
}

func pending(answer chan error) bool {
	select {
	case err := <-answer:
		answer <- err
		return false
	default:
		return true
	}
}

func TestNobodySeesAWriteThatTheLeadersDiskDoesNotHave(t *testing.T) {
	lagging(t, func(t *testing.T, w *world, lead *run) {
		w.servers[0].disk.Slow(time.Second, time.Second)
		index, answer := w.begin(t, lead, "/a", w.servers[1:]...)
		if w.servers[0].disk.Holds(index, 0) {
			t.Fatal("the leader's disk is not slow: this test shows nothing")
		}
		if !pending(answer) {
			t.Error("the write was acknowledged")
		}
		for _, s := range w.servers {
			if p := w.runOf(s).store.Progress(); p.CommitIndex >= index || p.AppliedIndex >= index || w.runOf(s).store.View().Get("/a") != nil {
				t.Errorf("server %s: %+v, the entry is %d", short(s.id), p, index)
			}
		}
		if v, err := lead.store.Barrier(t.Context()); err != nil || v.Get("/a") != nil {
			t.Error("a read saw it, or could not be made", err)
		}
		if err := <-answer; err != nil {
			t.Error(err)
		}
	})
}

func TestAFollowersDiskIsWrittenWhileTheLeadersIs(t *testing.T) {
	lagging(t, func(t *testing.T, w *world, lead *run) {
		for _, s := range w.servers {
			s.disk.Slow(100*time.Millisecond, 100*time.Millisecond)
		}
		best := time.Hour
		for i := 0; i < 100 && best > 150*time.Millisecond; i++ {
			time.Sleep(time.Duration(i) * 7 * time.Millisecond) // others write too: meet them otherwise
			began := time.Now()
			if err := lead.put(t.Context(), "/a"); err != nil {
				t.Fatal(err)
			}
			best = min(best, time.Since(began))
		}
		if best > 150*time.Millisecond {
			t.Errorf("a write took %v with disks that need 100 ms", best)
		}
	})
}

// TestALeaderThatLosesItsTailLosesNothing ends the process of a leader that has
// not written what one of the others has. Whether the entry survives is decided by
// the next election; all that was shown stays.
func TestALeaderThatLosesItsTailLosesNothing(t *testing.T) {
	for holder := 1; holder <= 2; holder++ {
		for _, cut := range []bool{false, true} {
			t.Run(fmt.Sprintf("holder %d, cut %v", holder, cut), func(t *testing.T) {
				lagging(t, func(t *testing.T, w *world, lead *run) {
					if err := lead.put(t.Context(), "/shown"); err != nil {
						t.Fatal(err)
					}
					old, has, hasNot := w.servers[0], w.servers[holder], w.servers[3-holder]
					w.net.ChangeLink(old.id, hasNot.id, func(l *simnet.Link) { l.Cut = true })
					old.disk.Slow(10*time.Second, 10*time.Second)
					w.begin(t, lead, "/tail", has)
					shown := w.runOf(has).store.View().Get("/tail") != nil
					w.crash(old)
					if cut { // the one that has it plays no part in the election
						w.disconnect(fault{kind: faultIsolate}, has, true)
						w.net.ChangeLink(old.id, hasNot.id, func(l *simnet.Link) { l.Cut = false })
						old.disk.Slow(0, time.Millisecond)
						w.start(old)
					}
					eventually(t, func() bool { return w.leader() == has || cut && w.leader() != nil && w.leader() != has })
					if err := w.runOf(w.leader()).put(t.Context(), "/after"); err != nil {
						t.Error(err)
					}
					v := w.runOf(w.leader()).store.View()
					if v.Get("/shown") == nil || shown && v.Get("/tail") == nil {
						t.Error("what was shown is gone")
					}
					old.disk.Slow(0, time.Millisecond)
				})
			})
		}
	}
}

// TestAServerThatSteppedDownSaysNothingOfItsTail lets another server lead that has
// the same entries, so that they are there already when it sends them.
func TestAServerThatSteppedDownSaysNothingOfItsTail(t *testing.T) {
	lagging(t, func(t *testing.T, w *world, lead *run) {
		old, next, third := w.servers[0], w.servers[1], w.servers[2]
		old.disk.Slow(5*time.Second, 5*time.Second)
		index, _ := w.begin(t, lead, "/a", next, third)
		w.disconnect(fault{kind: faultIsolate}, old, true)
		eventually(t, func() bool { return w.leader() != nil && w.leader() != old })
		if old.disk.Holds(index, 0) {
			t.Fatal("the disk is not slow: this test shows nothing")
		}
		w.disconnect(fault{kind: faultIsolate}, old, false)
		time.Sleep(2 * time.Second) // requests reach it; what it says is judged by answered
		if p := lead.store.Progress(); p.AppliedIndex >= index && !old.disk.Holds(index, 0) {
			t.Errorf("it has applied entry %d: %+v", index, p)
		}
	})
}

func TestALeaderWhoseDiskRefusesItsTailStepsDown(t *testing.T) {
	lagging(t, func(t *testing.T, w *world, lead *run) {
		old := w.servers[0]
		old.disk.Refuse(syscall.ENOSPC)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := lead.put(ctx, "/a"); !errors.Is(err, raftstore.ErrDiskFull) {
			t.Error(err)
		}
		eventually(t, func() bool { return w.leader() != nil && w.leader() != old })
		if err := w.runOf(w.leader()).put(ctx, "/b"); err != nil {
			t.Error(err)
		}
		if !errors.Is(lead.store.Err(), raftstore.ErrDiskFull) || lead.store.View() == nil {
			t.Error(lead.store.Err())
		}
		old.disk.Refuse(nil)
		eventually(t, func() bool { return lead.store.Err() == nil && lead.store.View().Get("/b") != nil })
	})
}

// TestAMajorityOfOneWaitsForItsDisk takes the votes of the others away, with a
// disk that is slow from then on: what the leader alone commits is on its disk.
func TestAMajorityOfOneWaitsForItsDisk(t *testing.T) {
	lagging(t, func(t *testing.T, w *world, lead *run) {
		old := w.servers[0]
		old.disk.Slow(300*time.Millisecond, 300*time.Millisecond)
		check := func(what string) {
			t.Helper()
			if p := lead.store.Progress(); !old.disk.Holds(p.CommitIndex, 0) {
				t.Errorf("%s: entry %d is committed and not on the only disk that counts", what, p.CommitIndex)
			}
		}
		over := make(chan struct{})
		w.zombies.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(10 * time.Millisecond):
					check("at any time")
				}
			}
		})
		defer close(over)
		for _, s := range w.servers[1:] {
			w.zombies.Go(func() { _ = lead.put(w.ctx, "/beside") })
			if err := lead.store.Demote(t.Context(), s.id); err != nil {
				t.Fatal(err)
			}
			check("after a demotion")
		}
		for i := range 5 {
			if err := lead.put(t.Context(), fmt.Sprint("/alone/", i)); err != nil {
				t.Fatal(err)
			}
			check("after a write")
		}
	})
}
