package raftstore

import (
	"container/heap"
	"sync"
	"time"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// lessor measures when leases run out. It reads the monotonic clock only, so that setting the wall clock changes nothing. Every peer
// has a lessor, fed from the applied entries. Only the leader's decides, by proposing a revocation, and a new leader first gives every
// lease its full time again, as in etcd.
type lessor struct {
	mu     sync.Mutex
	leases map[mvcc.LeaseID]*leaseClock
	due    leaseHeap
	wake   chan struct{} // buffered: the earliest deadline may have moved
	term   uint64        // newest term in which this peer led and was asked
}

type leaseClock struct {
	id       mvcc.LeaseID
	ttl      time.Duration
	deadline time.Time
	place    int  // index in the heap
	revoking bool // a revocation is under way
}

func newLessor() *lessor {
	return &lessor{leases: make(map[mvcc.LeaseID]*leaseClock), wake: make(chan struct{}, 1)}
}

func (l *lessor) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *lessor) granted(id mvcc.LeaseID, millis int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(id, millis, time.Now())
	l.poke()
}

func (l *lessor) add(id mvcc.LeaseID, millis int64, now time.Time) {
	c := &leaseClock{id: id, ttl: time.Duration(millis) * time.Millisecond}
	c.deadline = now.Add(c.ttl)
	l.leases[id] = c
	heap.Push(&l.due, c)
}

func (l *lessor) revoked(id mvcc.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.leases[id]; c != nil {
		heap.Remove(&l.due, c.place)
		delete(l.leases, id)
	}
}

// reset replaces all leases by those of r.
func (l *lessor) reset(r *mvcc.Root) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leases, l.due = make(map[mvcc.LeaseID]*leaseClock), nil
	now := time.Now()
	r.Leases.Scan(func(id mvcc.LeaseID, ttl int64) bool {
		l.add(id, ttl, now)
		return true
	})
	l.poke()
}

// enterTerm gives every lease its full time from now on if term, in which this peer leads, is later than every term before. l.mu is
// held.
func (l *lessor) enterTerm(term uint64) {
	if term <= l.term {
		return
	}
	l.term = term
	now := time.Now()
	for _, c := range l.leases {
		c.deadline, c.revoking = now.Add(c.ttl), false
	}
	heap.Init(&l.due)
	l.poke()
}

// renew gives lease id its full time again and returns that time, on the leader of term; false when there is no such lease.
func (l *lessor) renew(term uint64, id mvcc.LeaseID) (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enterTerm(term)
	c := l.leases[id]
	if c == nil || c.revoking {
		return 0, false
	}
	c.deadline = time.Now().Add(c.ttl)
	heap.Fix(&l.due, c.place)
	return c.ttl, true
}

// remaining returns how long lease id lives if it is not renewed, on the leader of term; false when there is no such lease.
func (l *lessor) remaining(term uint64, id mvcc.LeaseID) (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enterTerm(term)
	c := l.leases[id]
	if c == nil {
		return 0, false
	}
	return max(time.Until(c.deadline), 0), true
}

// expired returns at most n leases that have run out, on the leader of term, and how long it is until the next one does. It marks the
// returned leases as being revoked.
func (l *lessor) expired(term uint64, n int) (ids []mvcc.LeaseID, next time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enterTerm(term)
	now := time.Now()
	next = time.Hour
	for len(l.due) > 0 {
		c := l.due[0]
		if wait := c.deadline.Sub(now); wait > 0 {
			return ids, min(wait, next)
		}
		if len(ids) == n {
			return ids, 0
		}
		ids = append(ids, c.id)
		c.revoking = true
		// The lease leaves the front of the heap until the revocation is applied or given up.
		c.deadline = now.Add(time.Minute)
		heap.Fix(&l.due, 0)
	}
	return ids, next
}

// giveUp makes lease id expire again after pause: its revocation failed.
func (l *lessor) giveUp(id mvcc.LeaseID, pause time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.leases[id]; c != nil && c.revoking {
		c.deadline = time.Now().Add(pause)
		heap.Fix(&l.due, c.place)
	}
}

// leaseHeap orders leases by deadline.
type leaseHeap []*leaseClock

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].deadline.Before(h[j].deadline) }
func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *leaseHeap) Push(x any) {
	c := x.(*leaseClock)
	c.place = len(*h)
	*h = append(*h, c)
}

func (h *leaseHeap) Pop() any {
	old := *h
	n := len(old) - 1
	c := old[n]
	old[n] = nil
	*h = old[:n]
	return c
}
