package raftstore_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/simnet"
)

// TestALeaderThatWasReplacedAnswersNobody cuts off a leader whose clock is slow,
// so that it believes to lead for a while after another was elected, as one
// that was stopped and goes on does.
func TestALeaderThatWasReplacedAnswersNobody(t *testing.T) {
	h := newHistory()
	synctest.Test(t, func(t *testing.T) {
		h.start = time.Now()
		tr := traits{servers: 3, slowClock: 0, link: simnet.Link{MaxDelay: time.Millisecond}, snapshotEntries: 1 << 40, trailing: 1024}
		w := newWorld(1, tr, h)
		defer w.finish()
		old := w.servers[0]
		s := w.runOf(old).store
		var lease raftstore.LeaseID
		believes := func() bool { // another leads, and it has not noticed
			eventually(t, func() bool {
				if first := w.leader(); first != nil && first != old {
					_ = w.runOf(first).store.TransferLeadership(t.Context(), old.id) // until it works
				}
				return s.Leading()
			})
			var err error
			if lease, err = s.LeaseGrant(t.Context(), 0, time.Minute); err != nil {
				return false // it led for a moment
			}
			w.disconnect(fault{kind: faultIsolate}, old, true)
			eventually(t, func() bool { return w.leader() != old })
			return s.Leading()
		}
		for tries := 0; !believes(); tries++ { // by chance it steps down before the others elect
			if tries == 100 {
				t.Fatal("the old leader knows each time: this test shows nothing")
			}
			w.disconnect(fault{kind: faultIsolate}, old, false)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := s.ServeReadIndex(ctx); err == nil {
			t.Error("it gave an index to read at")
		}
		if _, err := s.ServeKeepAlive(ctx, lease); !errors.Is(err, raftstore.ErrNotLeader) {
			t.Errorf("it renewed a lease, or said that it ended: %v", err)
		}
		w.disconnect(fault{kind: faultIsolate}, old, false)
	})
	for _, f := range h.faults {
		t.Error(f)
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("did not come about within 30 s")
}
