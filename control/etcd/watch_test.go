package etcd

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/balsahq/balsa/raftstore"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// rawWatch is a watch stream without the client library's own state.
type rawWatch struct {
	t  *testing.T
	st pb.Watch_WatchClient
}

func (f *fixture) rawWatch(t *testing.T) *rawWatch {
	t.Helper()
	st, err := pb.NewWatchClient(f.client(t, "client").ActiveConnection()).Watch(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return &rawWatch{t, st}
}

func (w *rawWatch) create(r *pb.WatchCreateRequest) {
	w.t.Helper()
	w.request(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
}

func (w *rawWatch) progress() {
	w.t.Helper()
	w.request(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
}

func (w *rawWatch) request(r *pb.WatchRequest) {
	w.t.Helper()
	if err := w.st.Send(r); err != nil {
		w.t.Fatal(err)
	}
}

func (w *rawWatch) next() *pb.WatchResponse {
	w.t.Helper()
	r, err := w.st.Recv()
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func TestWatchDeliversEachEventOnceAndInOrder(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx, c := within(t), f.client(t, "client")
	old, err := c.Put(ctx, "p/0", "old")
	if err != nil {
		t.Fatal(err)
	}
	chans := []clientv3.WatchChan{
		c.Watch(ctx, "p/", clientv3.WithPrefix(), clientv3.WithRev(old.Header.Revision)),
		c.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(old.Header.Revision), clientv3.WithPrevKV()),
		c.Watch(ctx, "o", clientv3.WithRange("q"), clientv3.WithRev(old.Header.Revision), clientv3.WithFragment()),
	}
	const n = 300
	written := make(chan struct{})
	defer func() { <-written }()
	go func() {
		defer close(written)
		for i := 1; i <= n; i++ {
			if i%10 == 0 {
				_, _ = f.store.Txn(ctx, raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpPut, Key: "/registry/x"}}})
			}
			_, _ = c.Txn(ctx).Then(clientv3.OpPut(fmt.Sprintf("p/%d", i), "v"), clientv3.OpDelete(fmt.Sprintf("p/%d", i-1))).Commit()
		}
	}()
	for i, ch := range chans {
		last, seen := int64(0), 0
		for seen < 2*n+1 {
			r, ok := <-ch
			if !ok || r.Err() != nil {
				t.Fatalf("watch %d ended: %v", i, r.Err())
			}
			for j, e := range r.Events {
				seen++
				if e.Kv.ModRevision < last || j == 0 && e.Kv.ModRevision == last {
					t.Fatalf("watch %d: revision %d after %d, event %d of the answer", i, e.Kv.ModRevision, last, j)
				}
				last = e.Kv.ModRevision
				if e.Type == clientv3.EventTypeDelete && (e.PrevKv != nil) != (i == 1) {
					t.Fatalf("watch %d: previous version: %v", i, e.PrevKv)
				}
			}
			if r.Header.Revision < last {
				t.Fatalf("header of revision %d with an event of %d", r.Header.Revision, last)
			}
		}
	}
}

func TestProgressIsToldThoughNothingOfThePrefixChanged(t *testing.T) {
	f := serve(t, raftstore.Config{}, func(c *Config) { c.ProgressInterval = 50 * time.Millisecond })
	w := f.rawWatch(t)
	w.progress() // no watch yet: no answer
	w.create(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 7})
	if r := w.next(); !r.Created || r.WatchId != 7 {
		t.Fatalf("%+v", r)
	}
	put(t, f.store, "/registry/x", "y")
	rev := f.store.View().Revision()
	for got := int64(0); got < rev; { // the watchers learn of a revision just after the readers
		w.progress()
		r := w.next()
		if r.WatchId != -1 || len(r.Events) != 0 || r.Header.Revision > rev {
			t.Fatalf("%+v", r)
		}
		got = r.Header.Revision
	}
	w.create(&pb.WatchCreateRequest{Key: []byte("b"), ProgressNotify: true})
	if r := w.next(); !r.Created || r.WatchId != 0 {
		t.Fatalf("%+v", r)
	}
	if r := w.next(); r.WatchId != 0 || r.Header.Revision < rev || len(r.Events) > 0 {
		t.Fatalf("not told by itself: %+v", r)
	}
}

func TestProgressIsNeverAheadOfEvents(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx, c := within(t), f.client(t, "client")
	w := f.rawWatch(t)
	const watches = 20
	for i := range watches {
		w.create(&pb.WatchCreateRequest{Key: fmt.Appendf(nil, "k%d", i)})
		w.next()
	}
	const n = 400
	written := make(chan struct{})
	go func() {
		defer close(written)
		for i := range n {
			_, _ = c.Put(ctx, fmt.Sprintf("k%d", i%watches), "v")
			if i%3 == 0 {
				w.progress()
			}
		}
	}()
	told, high, answers := int64(0), int64(0), 0
	for events := 0; events < n || answers == 0; {
		r := w.next()
		for _, e := range r.Events {
			events++
			if e.Kv.ModRevision <= told {
				t.Fatalf("event of %d after progress told %d", e.Kv.ModRevision, told)
			}
			high = max(high, e.Kv.ModRevision)
		}
		if r.WatchId == -1 {
			answers++
			if told = r.Header.Revision; told < high {
				t.Fatalf("progress tells %d after an event of %d", told, high)
			}
		}
	}
	<-written
}

func TestWatchIdentitiesAndCancel(t *testing.T) {
	f := serve(t, raftstore.Config{}, func(c *Config) { c.MaxWatches = 3 })
	w := f.rawWatch(t)
	for _, c := range []struct {
		req      pb.WatchCreateRequest
		id       int64
		reason   string
		canceled bool
	}{
		{req: pb.WatchCreateRequest{Key: []byte("a"), WatchId: 1}, id: 1},
		{req: pb.WatchCreateRequest{Key: []byte("a"), WatchId: 1}, id: -1, reason: "duplicate watch ID", canceled: true},
		{req: pb.WatchCreateRequest{Key: []byte("a")}, id: 0},
		{req: pb.WatchCreateRequest{Key: []byte("b"), RangeEnd: []byte("a")}, id: -1, reason: "range is empty", canceled: true},
		{req: pb.WatchCreateRequest{Key: []byte("a"), StartRevision: -1}, id: -1, reason: "compacted", canceled: true},
		{req: pb.WatchCreateRequest{}, id: 2}, // 1 is taken
		{req: pb.WatchCreateRequest{Key: []byte("a")}, id: -1, reason: "too many", canceled: true},
	} {
		w.create(&c.req)
		r := w.next()
		if !r.Created || r.WatchId != c.id || r.Canceled != c.canceled || !strings.Contains(r.CancelReason, c.reason) {
			t.Fatalf("%+v gives %+v", c.req, r)
		}
	}
	w.request(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: 1}}})
	if r := w.next(); !r.Canceled || r.WatchId != 1 {
		t.Fatalf("%+v", r)
	}
}

func TestWatchFilters(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx, c := within(t), f.client(t, "client")
	noPut := c.Watch(ctx, "k", clientv3.WithFilterPut())
	noDelete := c.Watch(ctx, "k", clientv3.WithFilterDelete(), clientv3.WithCreatedNotify())
	<-noDelete
	for i := range 3 {
		if _, err := c.Put(ctx, "k", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Delete(ctx, "k"); err != nil {
			t.Fatal(err)
		}
	}
	for i, ch := range []clientv3.WatchChan{noPut, noDelete} {
		for seen := 0; seen < 3; {
			for _, e := range (<-ch).Events {
				seen++
				if (e.Type == clientv3.EventTypePut) != (i == 1) {
					t.Fatalf("watch %d shows %v", i, e.Type)
				}
			}
		}
	}
}

func TestOneRevisionIsOneAnswerUnlessFragmentsAreWanted(t *testing.T) {
	f := serve(t, raftstore.Config{}, func(c *Config) { c.MaxRequestBytes = 4 << 10 })
	ctx := within(t)
	w := f.rawWatch(t)
	for id, frag := range []bool{false, true} {
		w.create(&pb.WatchCreateRequest{Key: []byte("k"), RangeEnd: []byte("l"), WatchId: int64(id + 1), Fragment: frag})
		w.next()
	}
	var ops []raftstore.Op
	for i := range 10 {
		ops = append(ops, raftstore.Op{Type: raftstore.OpPut, Key: fmt.Sprintf("/balsa/etcd/k%d", i), Value: make([]byte, 1<<10)})
	}
	if _, err := f.store.Txn(ctx, raftstore.Txn{Success: ops}); err != nil {
		t.Fatal(err)
	}
	events, answers := map[int64]int{}, map[int64]int{}
	for events[1] < 10 || events[2] < 10 {
		r := w.next()
		events[r.WatchId] += len(r.Events)
		answers[r.WatchId]++
		if r.Fragment != (r.WatchId == 2 && events[2] < 10) {
			t.Fatalf("watch %d: fragment is %v after %d events", r.WatchId, r.Fragment, events[r.WatchId])
		}
	}
	if answers[1] != 1 || answers[2] < 3 {
		t.Fatalf("answers: %v", answers)
	}
}

func TestASlowReaderIsCutOffAndMayGoOn(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx := within(t)
	w := f.rawWatch(t)
	w.create(&pb.WatchCreateRequest{Key: []byte("big")})
	w.next()
	value := make([]byte, 1<<20)
	for range 20 { // more than the windows of the connection take
		_, err := f.store.Txn(ctx, raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpPut, Key: "/balsa/etcd/big", Value: value}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	rev := f.store.View().Revision()
	if err := f.store.Compact(ctx, rev); err != nil {
		t.Fatal(err)
	}
	for {
		r := w.next()
		if !r.Canceled {
			continue
		}
		if r.CompactRevision != rev+1 || !strings.Contains(r.CancelReason, "too slow") {
			t.Fatalf("%+v", r)
		}
		return
	}
}

func TestWatchesEndWithTheServer(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	w := f.rawWatch(t)
	w.create(&pb.WatchCreateRequest{Key: []byte("a")})
	w.next()
	f.server.Close()
	if _, err := w.st.Recv(); !errors.Is(rpctypes.Error(err), rpctypes.ErrStopped) {
		t.Fatal(err)
	}
}

func TestAClientThatDemandsALeaderIsSentAway(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx, c := clientv3.WithRequireLeader(within(t)), f.client(t, "client")
	st, err := pb.NewWatchClient(c.ActiveConnection()).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w := &rawWatch{t, st}
	w.create(&pb.WatchCreateRequest{Key: []byte("a")})
	w.next()
	f.server.lonely.set(true)
	if _, err := st.Recv(); !errors.Is(rpctypes.Error(err), rpctypes.ErrNoLeader) {
		t.Fatalf("a stream under way: %v", err)
	}
	if _, err := c.Get(ctx, "a", clientv3.WithSerializable()); !errors.Is(err, rpctypes.ErrNoLeader) {
		t.Fatalf("a request: %v", err)
	}
	if _, err := c.Get(within(t), "a", clientv3.WithSerializable()); err != nil {
		t.Fatalf("a request of another client: %v", err)
	}
	f.server.lonely.set(false)
	if _, err := c.Get(ctx, "a"); err != nil {
		t.Fatalf("when there is one again: %v", err)
	}
}

// BenchmarkWatches is a change and its event on a stream of as many watches,
// each of another key, and what a watch costs to begin with.
func BenchmarkWatches(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmarkWatches(b, n) })
	}
}

func benchmarkWatches(b *testing.B, watches int) {
	f := serve(b, raftstore.Config{}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	st, err := pb.NewWatchClient(f.client(b, "client").ActiveConnection()).Watch(ctx)
	if err != nil {
		b.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	go func() {
		for i := range watches {
			_ = st.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
				CreateRequest: &pb.WatchCreateRequest{Key: fmt.Appendf(nil, "k%d", i)}}})
		}
	}()
	for range watches {
		if _, err := st.Recv(); err != nil {
			b.Fatal(err)
		}
	}
	each := time.Since(start) / time.Duration(watches)
	runtime.GC()
	runtime.ReadMemStats(&after)
	for i := 0; b.Loop(); i++ {
		_, err := f.store.Txn(ctx, raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpPut, Key: fmt.Sprintf("/balsa/etcd/k%d", i%watches)}}})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := st.Recv(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(each.Microseconds()), "us/watch")
	b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/float64(watches), "B/watch")
}
