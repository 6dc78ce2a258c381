package cluster

import (
	"slices"
	"sync"
	"time"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
)

const (
	keptEvents = 1024
	maxStreams = 256 // readers of events at once
)

// ring keeps the newest events. A reader is a sequence number it has seen; one that falls out of the ring is cut off.
type ring struct {
	stream string

	mu      sync.Mutex
	events  []*clusterpb.Event // by sequence, ascending, at most keptEvents
	next    uint64
	changed chan struct{}
	readers int
}

func newRing(stream string) *ring {
	return &ring{stream: stream, next: 1, changed: make(chan struct{})}
}

// add numbers and keeps events.
func (r *ring) add(now time.Time, events []*clusterpb.Event) {
	if len(events) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		e.Stream, e.Sequence, e.Time = r.stream, r.next, now.UnixMilli()
		r.next++
		r.events = append(r.events, e)
	}
	if over := len(r.events) - keptEvents; over > 0 {
		r.events = slices.Delete(r.events, 0, over)
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// after returns the events that follow a sequence number and a channel closed when more come. lost says that some
// between are not kept any more.
func (r *ring) after(seq uint64) (events []*clusterpb.Event, lost bool, more <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.next - uint64(len(r.events))
	if seq+1 < first {
		return slices.Clone(r.events), true, r.changed
	}
	if seq >= r.next {
		return nil, false, r.changed // from the future: wait for it
	}
	return slices.Clone(r.events[seq+1-first:]), false, r.changed
}

// oldest is the sequence number before the oldest kept event.
func (r *ring) oldest() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next - uint64(len(r.events)) - 1
}

// enter takes a place for a reader.
func (r *ring) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.readers >= maxStreams {
		return false
	}
	r.readers++
	return true
}

func (r *ring) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readers--
}
