package raftstore

import (
	"context"
	"testing"
	"time"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func put(t testing.TB, s *Store, key, value string) int64 {
	t.Helper()
	res, err := s.Txn(t.Context(), mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: key, Value: []byte(value)}}})
	if err != nil {
		t.Fatal(err)
	}
	return res.Revision
}

func TestASingleVoterLeadsAtOnceAndKeepsItsData(t *testing.T) {
	dir := t.TempDir()
	for round, want := range []string{"", "one", "two"} {
		start := time.Now()
		s, err := Open(Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("round %d: open took %v", round, time.Since(start))
		if kv := s.View().Get("/a"); kv == nil && want != "" || kv != nil && string(kv.Value) != want {
			t.Fatalf("round %d: /a is %v, want %q", round, kv, want)
		}
		put(t, s, "/a", []string{"one", "two", "three"}[round])
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWatchDeliversWhatIsWritten(t *testing.T) {
	s := open(t, Config{InMemory: true})
	w, err := s.Watch(WatchRequest{Key: "/a/", RangeEnd: mvcc.PrefixEnd("/a/")})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	put(t, s, "/b/1", "x")
	rev := put(t, s, "/a/1", "y")
	b, err := w.Next(t.Context())
	if err != nil || len(b.Events) != 1 || b.Events[0].KV.Key != "/a/1" || b.Revision != rev {
		t.Fatalf("got %+v, %v", b, err)
	}
	rev = put(t, s, "/b/1", "x")
	if p := w.Progress(); p != rev {
		t.Fatalf("progress %d, want %d", p, rev)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Next(ctx); err != context.Canceled {
		t.Fatal(err)
	}
}

func TestLeadershipPassesOnWhenResigned(t *testing.T) {
	s := open(t, Config{InMemory: true})
	a, err := s.Campaign(t.Context(), "x", "a", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *Leadership)
	go func() {
		b, err := s.Campaign(t.Context(), "x", "b", time.Minute)
		if err != nil {
			t.Error(err)
		}
		got <- b
	}()
	if err := a.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-a.Lost()
	b := <-got
	if b.Epoch() <= a.Epoch() {
		t.Fatalf("epoch %d after %d", b.Epoch(), a.Epoch())
	}
	res, err := s.Txn(t.Context(), mvcc.Txn{Compares: []mvcc.Compare{a.Fence()}, Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "k"}}})
	if err != nil || res.Succeeded {
		t.Fatal("a write under the old term went through", err)
	}
	if err := b.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
}
