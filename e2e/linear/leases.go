package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/balsahq/balsa/e2e/history"
	"github.com/balsahq/balsa/e2e/quorum"
)

const leaseSeconds = 2

// lease grants a lease now and then, attaches a key to it, keeps it alive for a while through changing servers, and
// revokes it or lets it end.
func (r *run) lease(ctx context.Context) {
	rng := rand.New(rand.NewPCG(r.seed, 1<<32))
	u := newUser(r, r.options.clients+1)
	for ctx.Err() == nil {
		r.oneLease(ctx, u, rng)
		quorum.Pause(ctx, time.Duration(rng.IntN(1000))*time.Millisecond)
	}
}

func (r *run) oneLease(ctx context.Context, u *user, rng *rand.Rand) {
	client := func() *clientv3.Client { return r.clients[rng.IntN(r.servers)] }
	ask := func(do func(context.Context) error) bool {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return do(ctx) == nil
	}
	l := history.Lease{Until: r.now()}
	if !ask(func(ctx context.Context) error {
		granted, err := client().Grant(ctx, leaseSeconds)
		if err == nil {
			l.ID, l.Until = int64(granted.ID), l.Until+granted.TTL*int64(time.Second)
		}
		return err
	}) {
		return
	}
	u.perform(history.Op{
		Writes:   []history.Write{{Key: fmt.Sprintf("%s%x", history.LeasePrefix, l.ID), Value: u.value(), Lease: l.ID}},
		Endpoint: rng.IntN(r.servers),
	})
	for range rng.IntN(5) {
		quorum.Pause(ctx, time.Duration(300+rng.IntN(500))*time.Millisecond)
		renewal := history.Renewal{Endpoint: rng.IntN(r.servers), Call: r.now()}
		ask(func(ctx context.Context) error {
			alive, err := r.clients[renewal.Endpoint].KeepAliveOnce(ctx, clientv3.LeaseID(l.ID))
			if err == nil {
				renewal.TTL = alive.TTL
				l.Until = max(l.Until, renewal.Call+alive.TTL*int64(time.Second))
			}
			return err
		})
		renewal.Return = r.now()
		l.Renewals = append(l.Renewals, renewal)
	}
	if rng.IntN(4) == 0 {
		l.Until = min(l.Until, r.now())
		ask(func(ctx context.Context) error { _, err := client().Revoke(ctx, clientv3.LeaseID(l.ID)); return err })
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Leases = append(r.history.Leases, l)
}

// leasesEnd waits until no key of a lease is left. If keys are left after the wait, the checker finds them in the
// events.
func (r *run) leasesEnd(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		resp, err := r.clients[0].Get(ctx, history.LeasePrefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err == nil && resp.Count == 0 {
			return nil
		}
		quorum.Pause(ctx, 100*time.Millisecond)
	}
	return nil
}
