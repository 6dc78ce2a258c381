package raftstore

import (
	"sync"

	"github.com/hashicorp/raft"
)

// Bounds on the entries kept in memory after they were written.
const (
	recentEntries = 2048
	recentBytes   = 16 << 20
)

// recentLogs holds the newest entries of the log, in a ring.
type recentLogs struct {
	mu    sync.RWMutex
	ring  [recentEntries]*raft.Log
	first uint64 // of those held; first > last when none is
	last  uint64
	bytes int
}

// add keeps entries that follow one another.
func (r *recentLogs) add(logs []*raft.Log) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range logs {
		if l.Index != r.last+1 || r.empty() {
			r.clear()
			r.first = l.Index
		}
		at := &r.ring[l.Index%recentEntries]
		if *at != nil {
			r.first++
			r.bytes -= len((*at).Data)
		}
		*at, r.last = l, l.Index
		r.bytes += len(l.Data)
	}
	for r.bytes > recentBytes && !r.empty() {
		r.forget(r.first)
		r.first++
	}
}

func (r *recentLogs) empty() bool { return r.last == 0 || r.first > r.last }

func (r *recentLogs) forget(index uint64) {
	at := &r.ring[index%recentEntries]
	r.bytes -= len((*at).Data)
	*at = nil
}

func (r *recentLogs) clear() {
	clear(r.ring[:])
	r.first, r.last, r.bytes = 1, 0, 0
}

// drop forgets the entries lo to hi, which are at one end of the log.
func (r *recentLogs) drop(lo, hi uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.empty() || hi < r.first || lo > r.last:
	case lo <= r.first && hi < r.last:
		for ; r.first <= hi; r.first++ {
			r.forget(r.first)
		}
	case lo > r.first && hi >= r.last:
		for ; r.last >= lo; r.last-- {
			r.forget(r.last)
		}
	default:
		r.clear()
	}
}

func (r *recentLogs) get(index uint64) *raft.Log {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.empty() || index < r.first || index > r.last {
		return nil
	}
	return r.ring[index%recentEntries]
}
