package storage

import (
	"context"
	"sync"
	"time"

	"github.com/balsahq/balsa/raftstore"
)

const (
	// leaseReuse is the longest time for which one lease is handed out to
	// further objects; it is also at most a twentieth of their time to live.
	leaseReuse = time.Minute
	// leaseObjects is how many objects one lease is handed out to.
	leaseObjects = 1000
)

// granter is the part of the store that leases come from.
type granter interface {
	LeaseGrant(ctx context.Context, id raftstore.LeaseID, ttl time.Duration) (raftstore.LeaseID, error)
}

// leases hands out leases for objects that expire. Objects with the same time
// to live that are written about the same time share one, so that a burst of
// events costs one grant.
type leases struct {
	store granter
	now   func() time.Time

	mu      sync.Mutex
	current raftstore.LeaseID // the last one granted; guarded by mu
	expires time.Time         // guarded by mu
	objects int               // given current so far; guarded by mu
}

func newLeases(store granter) *leases { return &leases{store: store, now: time.Now} }

// lease returns a lease under which an object lives for ttl or a little longer.
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

// forget stops handing out id, which the store does not know (any more).
func (l *leases) forget(id raftstore.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == id {
		l.current = 0
	}
}
