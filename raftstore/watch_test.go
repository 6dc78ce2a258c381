package raftstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// TestWatchersSeeEveryEventOnceInOrder: writers on several prefixes, watchers
// that come, go and resume at every pace; in the end each has seen exactly the
// history of its range.
func TestWatchersSeeEveryEventOnceInOrder(t *testing.T) {
	s := open(t, Config{InMemory: true})
	const writers, each = 4, 300
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				key := fmt.Sprintf("/p%d/%d", w, i%5)
				op := mvcc.Op{Type: mvcc.OpPut, Key: key}
				if i%7 == 6 {
					op = mvcc.Op{Type: mvcc.OpDelete, Key: key}
				}
				ops := []mvcc.Op{op, {Type: mvcc.OpPut, Key: fmt.Sprintf("/all/%d", w)}}
				if _, err := s.Txn(context.Background(), mvcc.Txn{Success: ops}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { writing.Wait(); close(stop); close(done) }()
	reqs := []WatchRequest{{Key: "/p0/3"}, {Key: "/p1/", RangeEnd: mvcc.PrefixEnd("/p1/")}, {Key: "/p", RangeEnd: "/p2"}, {Key: "/", RangeEnd: "\x00"}, {Key: "/all/", RangeEnd: mvcc.PrefixEnd("/all/")}}
	seen := make([][]string, 3*len(reqs))
	var watching sync.WaitGroup
	for i := range seen {
		watching.Go(func() { seen[i] = follow(t, s, reqs[i%len(reqs)], stop) })
	}
	watching.Wait()
	<-done
	hist := s.machine.root.Load().Hist.Events
	for i, got := range seen {
		var want []string
		for _, e := range filter(nil, hist, reqs[i%len(reqs)]) {
			want = append(want, eventText(e))
		}
		if !slices.Equal(got, want) {
			t.Errorf("watcher %d of %+v saw %d events, there were %d", i, reqs[i%len(reqs)], len(got), len(want))
		}
	}
}

// follow watches from the beginning, closing and resuming now and then, until
// writing has stopped and everything is read.
func follow(t *testing.T, s *Store, req WatchRequest, stop <-chan struct{}) (seen []string) {
	at := int64(mvcc.FirstRevision)
	for {
		req.StartRevision = at + 1
		w, err := s.Watch(req)
		if err != nil {
			t.Error(err)
			return nil
		}
		for range 1 + rand.IntN(20) {
			stopped := closed(stop)
			b, wake, err := w.poll()
			if err != nil {
				t.Error(err)
				return nil
			}
			if len(b.Events) == 0 {
				if p := w.Progress(); stopped && p >= s.View().Revision() {
					w.Close()
					return seen
				}
				select {
				case <-wake:
				case <-stop:
				}
				continue
			}
			for _, e := range b.Events {
				if e.KV.ModRevision <= at {
					t.Errorf("event of revision %d after %d", e.KV.ModRevision, at)
				}
				seen = append(seen, eventText(e))
			}
			at = b.Revision
		}
		w.Close()
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestABatchHoldsWholeRevisions(t *testing.T) {
	s := open(t, Config{InMemory: true})
	w, err := s.Watch(WatchRequest{Key: "/", RangeEnd: "\x00"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var ops []mvcc.Op
	for i := range 2500 {
		ops = append(ops, mvcc.Op{Type: mvcc.OpPut, Key: fmt.Sprintf("/%04d", i)})
	}
	put(t, s, "/x", "before")
	res, err := s.Txn(t.Context(), mvcc.Txn{Success: ops})
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "/x", "after")
	b, err := w.Next(t.Context())
	if err != nil || len(b.Events) != 2501 || b.Revision != res.Revision {
		t.Fatalf("%d events to revision %d, %v", len(b.Events), b.Revision, err)
	}
}

func TestAWatcherIsNotWokenByOthersEvents(t *testing.T) {
	s := open(t, Config{InMemory: true})
	w, err := s.Watch(WatchRequest{Key: "/mine/", RangeEnd: mvcc.PrefixEnd("/mine/")})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	_, wake, err := w.poll()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		put(t, s, fmt.Sprintf("/other/%d", i), "x")
	}
	if closed(wake) {
		t.Fatal("woken")
	}
	rev := put(t, s, "/mine/1", "x")
	if !closed(wake) {
		t.Fatal("not woken")
	}
	if b, err := w.Next(t.Context()); err != nil || b.Revision != rev {
		t.Fatal(b, err)
	}
}

func TestClosingEndsNext(t *testing.T) {
	for name, end := range map[string]func(*Store, *Watcher){
		"the watcher": func(_ *Store, w *Watcher) { w.Close() },
		"the store":   func(s *Store, _ *Watcher) { s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Config{InMemory: true})
			w, err := s.Watch(WatchRequest{Key: "/a"})
			if err != nil {
				t.Fatal(err)
			}
			got := make(chan error)
			go func() {
				_, err := w.Next(context.Background())
				got <- err
			}()
			end(s, w)
			if err := <-got; !errors.Is(err, ErrClosed) {
				t.Fatal(err)
			}
		})
	}
}

func TestAWatchFromTheFutureWaitsForIt(t *testing.T) {
	s := open(t, Config{InMemory: true})
	w, err := s.Watch(WatchRequest{Key: "/a", StartRevision: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	put(t, s, "/a", "2")
	put(t, s, "/a", "3")
	put(t, s, "/a", "4")
	b, err := w.Next(t.Context())
	if err != nil || len(b.Events) != 1 || string(b.Events[0].KV.Value) != "4" {
		t.Fatalf("%+v %v", b, err)
	}
}

func TestAWatchFromTheFutureDoesNotHideThePresent(t *testing.T) {
	s := open(t, Config{InMemory: true})
	later, err := s.Watch(WatchRequest{Key: "/a", StartRevision: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	put(t, s, "/a", "2")
	for start, want := range map[int64]string{0: "3", 2: "2"} {
		w, err := s.Watch(WatchRequest{Key: "/a", StartRevision: start})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if start == 0 {
			put(t, s, "/a", "3")
		}
		b, err := w.Next(t.Context())
		if err != nil || len(b.Events) == 0 || string(b.Events[0].KV.Value) != want {
			t.Fatalf("from %d: %+v, %v", start, b, err)
		}
	}
	if p := later.Progress(); p != 99 {
		t.Fatal(p)
	}
}

// TestACompactionInTheSameBatchHidesNothing: a write and the compaction of its
// revision may be applied together, before any watcher could look.
func TestACompactionInTheSameBatchHidesNothing(t *testing.T) {
	m := newMachine(newLessor())
	w, err := m.hub.watch(WatchRequest{Key: "/a"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	write := mvcc.Command{Kind: mvcc.KindTxn, Txn: mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/a"}}}}
	compact := mvcc.Command{Kind: mvcc.KindCompact, Revision: 2}
	for i, c := range []mvcc.Command{write, compact} {
		if a := m.apply(uint64(i+1), c.Encode()); a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	m.publish()
	b, _, err := w.poll()
	if !errors.Is(err, ErrOverrun) && len(b.Events) != 1 {
		t.Fatalf("the event is gone and nobody said so: %+v, %v", b, err)
	}
}

func TestWatchesResumeAfterARestart(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	for i := range 20 {
		put(t, s, "/a", fmt.Sprint(i))
		if i == 10 {
			if err := s.Snapshot(); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.Close()
	s = open(t, Config{Dir: dir})
	w, err := s.Watch(WatchRequest{Key: "/a", StartRevision: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	b, err := w.Next(t.Context())
	if err != nil || len(b.Events) != 17 || string(b.Events[0].KV.Value) != "3" || string(b.Events[0].Prev.Value) != "2" {
		t.Fatalf("%d events, %v", len(b.Events), err)
	}
}

func TestPrefixEnd(t *testing.T) {
	for prefix, want := range map[string]string{"a": "b", "/a/": "/a0", "a\xff": "b", "\xff": "\x00", "": "\x00"} {
		if got := mvcc.PrefixEnd(prefix); got != want {
			t.Errorf("PrefixEnd(%q) is %q, want %q", prefix, got, want)
		}
		for _, key := range []string{prefix, prefix + "\x00", prefix + "\xff\xff"} {
			if key != "" && !mvcc.InRange(key, prefix, mvcc.PrefixEnd(prefix)) || !strings.HasPrefix(key, prefix) {
				t.Errorf("%q is not under %q", key, prefix)
			}
		}
	}
}
