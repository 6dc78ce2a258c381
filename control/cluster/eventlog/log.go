package eventlog

import (
	"slices"
	"sync"
	"time"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
)

const (
	capacity   = 1024
	MaxReaders = 256 // readers of events at once
)

// Log keeps the newest events. A reader is a sequence number it has seen; one that falls out of the ring is cut off.
type Log struct {
	Stream string

	mu      sync.Mutex
	events  []*clusterpb.Event // by sequence, ascending, at most keptEvents
	next    uint64
	changed chan struct{}
	readers int
}

func New(stream string) *Log {
	return &Log{Stream: stream, next: 1, changed: make(chan struct{})}
}

// Append numbers and keeps events.
func (r *Log) Append(now time.Time, events []*clusterpb.Event) {
	if len(events) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		e.Stream, e.Sequence, e.Time = r.Stream, r.next, now.UnixMilli()
		r.next++
		r.events = append(r.events, e)
	}
	if over := len(r.events) - capacity; over > 0 {
		r.events = slices.Delete(r.events, 0, over)
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// After returns the events that follow a sequence number and a channel closed when more come. lost says that some
// between are not kept any more.
func (r *Log) After(seq uint64) (events []*clusterpb.Event, lost bool, more <-chan struct{}) {
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

// Oldest is the sequence number before the oldest kept event.
func (r *Log) Oldest() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next - uint64(len(r.events)) - 1
}

// AddReader takes a place for a reader.
func (r *Log) AddReader() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.readers >= MaxReaders {
		return false
	}
	r.readers++
	return true
}

func (r *Log) RemoveReader() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readers--
}
