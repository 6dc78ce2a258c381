package raftstore

import (
	"time"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// retention decides how much history to keep: a pure function of the revisions it has seen. The times are of the leader's monotonic
// clock.
type retention struct {
	age    time.Duration
	events int
	bytes  int64
	seen   []sighting // oldest first
}

// sighting is the revision the store had at a time.
type sighting struct {
	at  time.Time
	rev int64
}

// decide returns the revision to compact to now, 0 for none. History older than age is removed, and the older half of the rest when the
// rest is still too much.
func (r *retention) decide(now time.Time, h *mvcc.History, newest int64) int64 {
	every := r.age / 16
	if n := len(r.seen); n == 0 || now.Sub(r.seen[n-1].at) >= every {
		r.seen = append(r.seen, sighting{now, newest})
	}
	target, drop := h.Compacted(), 0
	for i, s := range r.seen {
		if now.Sub(s.at) < r.age {
			break
		}
		target, drop = max(target, s.rev), i
	}
	r.seen = append(r.seen[:0:0], r.seen[drop:]...)
	left := len(h.Events) - h.After(target)
	if n := len(h.Events); left > r.events || n > 0 && h.Bytes > r.bytes && left > n/2 {
		target = max(target, h.Events[n-1-left/2].KV.ModRevision)
	}
	if target <= h.Compacted() {
		return 0
	}
	return target
}

// wantSnapshot reports whether the log since the last snapshot is long enough to write the whole state again. The number of entries
// decides how long a start takes; the bytes must not be tiny next to the state.
func wantSnapshot(entries, bytes, least, stateBytes int64) bool {
	if entries < least {
		return bytes > 256<<20
	}
	return bytes >= stateBytes/4 || entries >= 4*least
}
