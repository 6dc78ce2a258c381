package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/balsahq/balsa/e2e/quorum"
)

// TestWokenLeaderEndsNoLease: a leader that is stopped for longer than a lease
// lives, while others keep the lease alive, must not end it when it wakes: it
// does not know yet that it was replaced, and by its clock the lease is over.
func TestWokenLeaderEndsNoLease(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := quorum.New(quorum.Config{System: *system, Binary: *bin, Servers: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.Form(ctx))
	for range 3 {
		leader, err := c.Leader(ctx)
		must(err)
		other, err := c.Client(c.Endpoint((leader + 1) % c.Size()))
		must(err)
		defer other.Close()
		lease, err := other.Grant(ctx, 2)
		must(err)
		_, err = other.Put(ctx, "leased", "x", clientv3.WithLease(lease.ID))
		must(err)
		alive := func(lasts time.Duration) {
			t.Helper()
			for until := time.Now().Add(lasts); time.Now().Before(until); quorum.Pause(ctx, 200*time.Millisecond) {
				try, cancel := context.WithTimeout(ctx, time.Second)
				_, err := other.KeepAliveOnce(try, lease.ID)
				cancel()
				if errors.Is(err, rpctypes.ErrLeaseNotFound) { // while nobody leads, others are right
					t.Fatal("the lease ended, although it was kept alive")
				}
			}
		}
		alive(500 * time.Millisecond)
		must(c.Process(leader).Pause())
		alive(4 * time.Second)
		must(c.Process(leader).Resume())
		alive(1500 * time.Millisecond)
		got, err := other.Get(ctx, "leased")
		must(err)
		if got.Count != 1 {
			t.Fatal("the key went, although its lease was kept alive")
		}
		must(c.Ready(ctx, leader))
	}
}
