package raftstore_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/balsahq/balsa/raftstore"
)

// watch follows a range from server to server until the run is over.
func (c *client) watch() {
	w := c.w
	sw := &simWatch{text: fmt.Sprintf("watcher %d", c.n), key: "/k/", end: "/k0"}
	if c.rng.IntN(2) == 0 {
		sw.key, sw.end = simKey(c.rng.IntN(simKeys)), ""
	}
	defer func() {
		w.h.mu.Lock()
		w.h.watches = append(w.h.watches, sw)
		w.h.mu.Unlock()
	}()
	next := int64(2)
	for c.think(50 * time.Millisecond) {
		s := w.pick(c.rng)
		if s == nil {
			continue
		}
		if len(sw.spans) == 0 && c.rng.IntN(2) == 0 {
			if rev, err := ask(w, s, time.Second, func(_ context.Context, r *run) (int64, error) { return r.store.View().Revision(), nil }); err == nil {
				next = rev + 1
			}
		}
		next = c.follow(s, sw, next)
	}
}

// follow watches at one server from revision next on, for a while, and returns
// where to go on.
func (c *client) follow(s *server, sw *simWatch, next int64) int64 {
	w := c.w
	r := w.runOf(s)
	if r == nil {
		return next
	}
	watch, err := r.store.Watch(raftstore.WatchRequest{Key: sw.key, RangeEnd: sw.end, StartRevision: next})
	switch {
	case errors.Is(err, raftstore.ErrCompacted):
		if !w.traits.compacts {
			w.h.failf("%s cannot go on at %d at %s: %v", sw.text, next, r.name, err)
		}
		sw.mayLose = true
		return r.store.CompactRevision() + 1
	case err != nil:
		return next
	}
	defer watch.Close()
	span := simSpan{after: next - 1, upTo: next - 1}
	ctx, cancel := context.WithTimeout(w.ctx, time.Duration(c.rng.Int64N(int64(3*time.Second))))
	defer cancel()
	for {
		b, err := watch.Next(ctx)
		if err != nil || r.node.Awake(ctx) != nil || r.dead() {
			break
		}
		for _, e := range b.Events {
			span.events = append(span.events, eventOf(e))
		}
		span.upTo = b.Revision
		if c.rng.IntN(3) == 0 {
			span.upTo = max(span.upTo, watch.Progress())
		}
	}
	sw.spans = append(sw.spans, span)
	return span.upTo + 1
}

// lease grants leases, keeps a key alive under each for a while, and lets go.
func (c *client) lease() {
	w := c.w
	for i := 0; c.think(300 * time.Millisecond); i++ {
		s := w.pick(c.rng)
		if s == nil {
			continue
		}
		l := &simLease{ttl: time.Duration(500+c.rng.IntN(2000)) * time.Millisecond, key: fmt.Sprintf("/lease/%d-%d", c.n, i)}
		began := w.h.now()
		id, err := ask(w, s, 2*time.Second, func(ctx context.Context, r *run) (raftstore.LeaseID, error) {
			return r.store.LeaseGrant(ctx, 0, l.ttl)
		})
		if err != nil {
			continue
		}
		l.id, l.alive = id, began
		w.h.mu.Lock()
		w.h.leases = append(w.h.leases, l)
		w.h.mu.Unlock()
		op := &simOp{client: c.n, outside: true, text: fmt.Sprintf("put %s under lease %x", l.key, int64(id)), tag: c.value()}
		op.txn = raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpPut, Key: l.key, Value: []byte(op.tag), Lease: id}}}
		c.transact(op, s)
		c.keepAlive(l)
	}
}

// keepAlive renews l at changing servers, for some times its time.
func (c *client) keepAlive(l *simLease) {
	w := c.w
	for range c.rng.IntN(8) {
		if !c.sleep(l.ttl / 3) {
			return
		}
		s := w.pick(c.rng)
		if s == nil {
			continue
		}
		asked := w.h.now()
		_, err := ask(w, s, l.ttl/3, func(ctx context.Context, r *run) (time.Duration, error) {
			return r.store.LeaseKeepAlive(ctx, l.id)
		})
		switch {
		case err == nil:
			l.alive = asked
			w.h.logf("client %d: lease %x renewed at %s", c.n, int64(l.id), short(s.id))
		case errors.Is(err, raftstore.ErrLeaseNotFound):
			w.h.logf("client %d: lease %x is gone", c.n, int64(l.id))
			if asked < l.alive+l.ttl && w.h.now() < l.alive+l.ttl {
				w.h.failf("lease %x of %v, renewed at %v, is gone at %v", int64(l.id), l.ttl, l.alive, asked)
			}
			return
		}
	}
	if s := w.pick(c.rng); s != nil && c.rng.IntN(3) == 0 {
		l.revoked = true
		_, _ = ask(w, s, time.Second, func(ctx context.Context, r *run) (struct{}, error) { return struct{}{}, r.store.LeaseRevoke(ctx, l.id) })
	}
}

// rule campaigns at one run of a server and writes under the leadership, also
// when it is over: then in vain.
func (c *client) rule(s *server, r *run) {
	w := c.w
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	w.zombies.Go(func() {
		select {
		case <-r.node.Dead():
			cancel()
		case <-ctx.Done():
		}
	})
	for {
		l, err := r.store.Campaign(ctx, "boss", s.id, 2*time.Second)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, raftstore.ErrClosed) || !c.sleep(100*time.Millisecond) {
				return
			}
			continue
		}
		w.h.logf("server %s rules, epoch %d", r.name, l.Epoch())
		for over := false; !over; {
			select {
			case <-l.Lost():
				over = true
				w.h.logf("server %s rules no more, epoch %d", r.name, l.Epoch())
			case <-time.After(time.Duration(c.rng.Int64N(int64(300 * time.Millisecond)))):
				over = c.rng.IntN(12) == 0
			case <-ctx.Done():
				over = true
			}
			c.fenced(s, r, l)
		}
		rctx, done := context.WithTimeout(context.Background(), time.Second)
		_ = l.Resign(rctx) // it may be lost, or cannot be reached
		done()
	}
}

func (c *client) fenced(s *server, r *run, l *raftstore.Leadership) {
	if c.w.runOf(s) != r {
		return
	}
	op := &simOp{client: c.n, outside: true, text: fmt.Sprintf("write of epoch %d at %s", l.Epoch(), r.name), tag: fmt.Sprintf("fenced-%d-%s", l.Epoch(), c.value())}
	op.txn = raftstore.Txn{
		Compares: []raftstore.Compare{l.Fence()},
		Success:  []raftstore.Op{{Type: raftstore.OpPut, Key: "/boss", Value: []byte(op.tag)}},
	}
	c.transact(op, s)
}
