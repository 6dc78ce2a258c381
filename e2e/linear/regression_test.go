package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/balsahq/balsa/e2e/quorum"
)

// three starts a cluster of three servers.
func three(t *testing.T) (context.Context, *quorum.Cluster, func(error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	t.Cleanup(cancel)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c, err := quorum.New(quorum.Config{System: *system, Binary: *bin, Servers: 3})
	must(err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	must(c.Form(ctx))
	return ctx, c, must
}

// TestWokenLeaderEndsNoLease: a leader is stopped for longer than a lease lives, while other servers keep the lease
// alive. When it wakes, it must not end the lease: it does not know yet that it was replaced, and its clock says that
// the lease is over.
func TestWokenLeaderEndsNoLease(t *testing.T) {
	ctx, c, must := three(t)
	for range 2 {
		leader, err := c.Leader(ctx)
		must(err)
		other, err := c.Client(c.Endpoint((leader + 1) % c.Size()))
		must(err)
		defer other.Close()
		const ttl = 3 // seconds
		lease, err := other.Grant(ctx, ttl)
		must(err)
		_, err = other.Put(ctx, "leased", "x", clientv3.WithLease(lease.ID))
		must(err)
		answered, answers := time.Now(), 0
		late := false // on a machine that was too busy for this test, a lease may end
		alive := func(when string, lasts time.Duration) {
			t.Helper()
			for until := time.Now().Add(lasts); time.Now().Before(until); quorum.Pause(ctx, 200*time.Millisecond) {
				try, cancel := context.WithTimeout(ctx, time.Second)
				_, err := other.KeepAliveOnce(try, lease.ID)
				cancel()
				if late = late || time.Since(answered) > ttl*time.Second; late && err != nil {
					continue
				}
				if errors.Is(err, rpctypes.ErrLeaseNotFound) { // without a leader, this answer is right
					t.Fatalf("%s the lease ended, kept alive %d times, the last time %s ago", when, answers, time.Since(answered))
				}
				if err == nil {
					answered, answers = time.Now(), answers+1
				}
			}
		}
		alive("at first", 500*time.Millisecond)
		must(c.Process(leader).Pause())
		alive("while the leader was stopped", 2*ttl*time.Second)
		must(c.Process(leader).Resume())
		alive("after it woke", 1500*time.Millisecond)
		got, err := other.Get(ctx, "leased")
		must(err)
		if got.Count != 1 && !late {
			t.Fatal("the key went, although its lease was kept alive")
		}
		t.Logf("the lease was kept alive %d times, in time: %v", answers, !late)
		must(c.Ready(ctx, leader))
	}
}

// TestRestartedServersDoNotForget: servers that have just started do not know yet how much of their log is committed.
// They must not show an older state than before, and must not report less progress to watchers than before: clients
// resume from there and would receive events twice.
func TestRestartedServersDoNotForget(t *testing.T) {
	ctx, c, must := three(t)
	var last int64
	for range 3 {
		client, err := c.Client(c.Endpoint(2))
		must(err)
		defer client.Close()
		for range 200 {
			put, err := client.Put(ctx, "kept", "x")
			must(err)
			last = put.Header.Revision
		}
		shown := make([]int64, c.Size()) // revision shown by each server before the restart
		for i := range shown {
			each, err := c.Client(c.Endpoint(i))
			must(err)
			got, err := each.Get(ctx, "kept", clientv3.WithSerializable())
			each.Close()
			must(err)
			shown[i] = got.Header.Revision
		}
		for i := range c.Size() {
			must(c.Process(i).Kill9())
		}
		for i := range c.Size() {
			must(c.Start(ctx, i))
		}
		faults := make([]error, c.Size())
		var asked sync.WaitGroup
		for i := range faults {
			asked.Go(func() { faults[i] = remembers(ctx, c, i, shown[i], last) })
		}
		asked.Wait()
		must(errors.Join(faults...))
	}
}

// remembers reads from a server again and again, from before it serves until it has served for a while.
func remembers(ctx context.Context, c *quorum.Cluster, i int, shown, last int64) error {
	client, err := c.Client(c.Endpoint(i))
	if err != nil {
		return err
	}
	defer client.Close()
	stream := client.Watch(ctx, "kept", clientv3.WithRev(last+1))
	served := 0
	for ctx.Err() == nil && served < 20 {
		try, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		got, err := client.Get(try, "kept", clientv3.WithSerializable())
		_ = client.RequestProgress(try)
		cancel()
		if err == nil && (got.Count != 1 || got.Header.Revision < shown) {
			return fmt.Errorf("server %d: a read shows %d keys at revision %d, after this server had shown revision %d", i, got.Count, got.Header.Revision, shown)
		}
		if err == nil {
			served++
		}
		select {
		case seen, ok := <-stream:
			if ok && (seen.Header.Revision < last || len(seen.Events) > 0) {
				return fmt.Errorf("server %d: a watch from revision %d on was told %d events, revision %d", i, last+1, len(seen.Events), seen.Header.Revision)
			}
		case <-time.After(20 * time.Millisecond):
		}
	}
	return ctx.Err()
}
