package eventlog

import (
	"testing"
	"time"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
)

func TestSlowReadersOfEventsAreToldSo(t *testing.T) {
	r := New("s")
	for range capacity + 10 {
		r.Append(time.Now(), []*clusterpb.Event{{}})
	}
	if len(r.events) != capacity || r.Oldest() != 10 {
		t.Fatalf("%d kept, oldest %d", len(r.events), r.Oldest())
	}
	for _, c := range []struct {
		after uint64
		n     int
		lost  bool
	}{{0, capacity, true}, {9, capacity, true}, {10, capacity, false}, {capacity + 9, 1, false}, {capacity + 10, 0, false}, {1 << 60, 0, false}} {
		events, lost, _ := r.After(c.after)
		if len(events) != c.n || lost != c.lost {
			t.Errorf("after %d: %d, %v", c.after, len(events), lost)
		}
	}
	for range MaxReaders {
		if !r.AddReader() {
			t.Fatal("no place")
		}
	}
	if r.AddReader() {
		t.Error("readers without bound")
	}
}
