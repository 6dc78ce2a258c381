package cluster

import (
	"testing"
	"time"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
)

func TestSlowReadersOfEventsAreToldSo(t *testing.T) {
	r := newRing("s")
	for range keptEvents + 10 {
		r.add(time.Now(), []*clusterpb.Event{{}})
	}
	if len(r.events) != keptEvents || r.oldest() != 10 {
		t.Fatalf("%d kept, oldest %d", len(r.events), r.oldest())
	}
	for _, c := range []struct {
		after uint64
		n     int
		lost  bool
	}{{0, keptEvents, true}, {9, keptEvents, true}, {10, keptEvents, false}, {keptEvents + 9, 1, false}, {keptEvents + 10, 0, false}, {1 << 60, 0, false}} {
		events, lost, _ := r.after(c.after)
		if len(events) != c.n || lost != c.lost {
			t.Errorf("after %d: %d, %v", c.after, len(events), lost)
		}
	}
	for range maxStreams {
		if !r.enter() {
			t.Fatal("no place")
		}
	}
	if r.enter() {
		t.Error("readers without bound")
	}
}
