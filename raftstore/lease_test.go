package raftstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// running opens a store and runs it until the returned function is called. It
// is made for synctest bubbles, whose time is fake.
func running(t *testing.T, cfg Config) (*Store, func()) {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return s, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func leased(t *testing.T, s *Store, key string, ttl time.Duration) mvcc.LeaseID {
	t.Helper()
	id, err := s.LeaseGrant(context.Background(), 0, ttl)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Txn(context.Background(), mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: key, Lease: id}}})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestALeaseExpiresWhenNobodyRenewsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := running(t, Config{InMemory: true})
		defer stop()
		id := leased(t, s, "/a", 10*time.Second)
		leased(t, s, "/b", time.Hour)
		time.Sleep(10*time.Second - time.Millisecond)
		synctest.Wait()
		if s.View().Get("/a") == nil {
			t.Fatal("expired early")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if s.View().Get("/a") != nil || s.View().Get("/b") == nil {
			t.Fatal("the wrong keys are there")
		}
		if _, err := s.LeaseKeepAlive(context.Background(), id); !errors.Is(err, ErrLeaseNotFound) {
			t.Fatal(err)
		}
		if l := s.Leases(); len(l) != 1 || l[0].TTL != time.Hour {
			t.Fatal(l)
		}
	})
}

func TestARenewedLeaseLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := running(t, Config{InMemory: true})
		defer stop()
		id := leased(t, s, "/a", 10*time.Second)
		for range 10 {
			time.Sleep(9 * time.Second)
			if ttl, err := s.LeaseKeepAlive(context.Background(), id); err != nil || ttl != 10*time.Second {
				t.Fatal(ttl, err)
			}
		}
		time.Sleep(4 * time.Second)
		if left, err := s.LeaseRemaining(context.Background(), id); err != nil || left != 6*time.Second {
			t.Fatal(left, err)
		}
		if rev := s.View().Revision(); rev != 2 {
			t.Fatalf("renewing wrote: revision %d", rev)
		}
	})
}

func TestManyLeasesExpireAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := running(t, Config{InMemory: true})
		defer stop()
		for i := range 300 {
			leased(t, s, fmt.Sprintf("/k/%d", i), 5*time.Second)
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if n := s.View().Len(); n != 0 || len(s.Leases()) != 0 {
			t.Fatalf("%d keys left", n)
		}
	})
}

func TestALeaseHasItsFullTimeAfterARestart(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, stop := running(t, Config{Dir: dir})
		leased(t, s, "/a", 10*time.Second)
		time.Sleep(8 * time.Second)
		stop()
		s, stop = running(t, Config{Dir: dir})
		defer stop()
		time.Sleep(8 * time.Second)
		synctest.Wait()
		if s.View().Get("/a") == nil {
			t.Fatal("expired within its time")
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if s.View().Get("/a") != nil {
			t.Fatal("did not expire after the restart")
		}
	})
}

func TestRevokingALeaseIsOneRevision(t *testing.T) {
	s := open(t, Config{InMemory: true})
	id, err := s.LeaseGrant(t.Context(), 7, time.Hour)
	if err != nil || id != 7 {
		t.Fatal(id, err)
	}
	const keys = 40
	for i := range keys {
		if _, err := s.Txn(t.Context(), mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: fmt.Sprintf("/k%02d", i*17%keys), Lease: id}}}); err != nil {
			t.Fatal(err)
		}
	}
	put(t, s, "/k39", "without a lease now")
	w, err := s.Watch(WatchRequest{Key: "/", RangeEnd: "\x00"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := s.LeaseRevoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	b, err := w.Next(t.Context())
	if err != nil || len(b.Events) != keys-1 {
		t.Fatal(b, err)
	}
	for i, e := range b.Events {
		if e.Type != mvcc.EventDelete || e.KV.ModRevision != b.Revision || e.KV.Key != fmt.Sprintf("/k%02d", i) {
			t.Fatalf("%+v", e)
		}
	}
}

func TestALeaseBeingRevokedCannotBeRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLessor()
		l.granted(1, 1000)
		l.granted(2, 2000)
		l.expired(1, 10) // the leader of term 1 gives them their time
		time.Sleep(1500 * time.Millisecond)
		ids, next := l.expired(1, 10)
		if len(ids) != 1 || ids[0] != 1 || next != 500*time.Millisecond {
			t.Fatal(ids, next)
		}
		if _, ok := l.renew(1, 1); ok {
			t.Fatal("renewed while it was being revoked")
		}
		l.giveUp(1, time.Second)
		time.Sleep(time.Second)
		if ids, _ := l.expired(1, 10); len(ids) != 2 {
			t.Fatal("a revocation that failed is not tried again", ids)
		}
		// A new leader starts over.
		if _, ok := l.renew(2, 1); !ok {
			t.Fatal("a new leader must not know what the old one was doing")
		}
	})
}

func TestHistoryAgesAndContinueTokensExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := running(t, Config{InMemory: true})
		defer stop()
		old := putIn(t, s, "/a", "1")
		putIn(t, s, "/a", "2")
		for range 9 {
			time.Sleep(30 * time.Second)
			putIn(t, s, "/b", "x")
		}
		if v, err := s.ViewAt(old); err != nil || string(v.Get("/a").Value) != "1" {
			t.Fatal("history is gone after 4.5 min", err)
		}
		for range 6 {
			time.Sleep(30 * time.Second)
			putIn(t, s, "/b", "x")
		}
		if _, err := s.ViewAt(old); !errors.Is(err, ErrCompacted) {
			t.Fatal("history is there after 7.5 min", err)
		}
	})
}

func putIn(t *testing.T, s *Store, key, value string) int64 {
	t.Helper()
	res, err := s.Txn(context.Background(), mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: key, Value: []byte(value)}}})
	if err != nil {
		t.Fatal(err)
	}
	return res.Revision
}

func TestHistoryIsBoundedByCountAndBytes(t *testing.T) {
	for name, cfg := range map[string]Config{
		"count": {InMemory: true, HistoryEvents: 100},
		"bytes": {InMemory: true, HistoryBytes: 100 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, stop := running(t, cfg)
				defer stop()
				slow, err := s.Watch(WatchRequest{Key: "/k", RangeEnd: mvcc.PrefixEnd("/k")})
				if err != nil {
					t.Fatal(err)
				}
				idle, err := s.Watch(WatchRequest{Key: "/other"})
				if err != nil {
					t.Fatal(err)
				}
				for i := range 500 {
					putIn(t, s, fmt.Sprint("/k", i%7), string(make([]byte, 1000)))
				}
				time.Sleep(20 * time.Second)
				synctest.Wait()
				h := s.machine.root.Load().Hist
				if len(h.Events) > 100 && name == "count" || h.Bytes > 100<<10 {
					t.Fatalf("%d events, %d bytes are kept", len(h.Events), h.Bytes)
				}
				if _, err := slow.Next(context.Background()); !errors.Is(err, ErrOverrun) {
					t.Fatal("a watcher that fell behind was not told", err)
				}
				putIn(t, s, "/other", "x")
				if b, err := idle.Next(context.Background()); err != nil || len(b.Events) != 1 {
					t.Fatal("a watcher that missed nothing was cut off", err)
				}
			})
		})
	}
}
