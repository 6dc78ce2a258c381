package storage

import (
	"context"
	"sync"
	"time"

	"github.com/balsahq/balsa/raftstore"
)

const (
	// leaseReuse is the longest time during which further objects get the same lease. A twentieth of their time to live
	// is the limit if it is shorter.
	leaseReuse = time.Minute
	// leaseObjects is the largest number of objects on one lease.
	leaseObjects = 1000
)

// granter is the part of the store that grants leases.
type granter interface {
	LeaseGrant(ctx context.Context, id raftstore.LeaseID, ttl time.Duration) (raftstore.LeaseID, error)
}

// leases assigns leases to objects that expire. Objects with the same time to live that are written within leaseReuse
// share a lease, so that a burst of events costs one grant.
type leases struct {
	store granter
	now   func() time.Time

	mu      sync.Mutex
	current raftstore.LeaseID // the lease granted last; guarded by mu
	expires time.Time         // guarded by mu
	objects int               // on current so far; guarded by mu
}

func newLeases(store granter) *leases { return &leases{store: store, now: time.Now} }

// lease returns a lease that lasts for ttl or up to a twentieth longer.
func (l *leases) lease(ctx context.Context, ttl time.Duration) (raftstore.LeaseID, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	extra := min(leaseReuse, ttl/20).Truncate(time.Second)
	now := l.now()
	longEnough := !now.Add(ttl).After(l.expires)
	notTooLong := !now.Add(ttl + extra).Before(l.expires)
	if l.current != 0 && longEnough && notTooLong && l.objects < leaseObjects {
		l.objects++
		return l.current, nil
	}
	id, err := l.store.LeaseGrant(ctx, 0, ttl+extra)
	if err != nil {
		return 0, err
	}
	l.current, l.expires, l.objects = id, now.Add(ttl+extra), 1
	return id, nil
}

// forget stops the use of id, which the store does not know, or no longer knows.
func (l *leases) forget(id raftstore.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == id {
		l.current = 0
	}
}
