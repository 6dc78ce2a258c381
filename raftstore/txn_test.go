package raftstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

func TestRequestsThatMakeNoSenseAreRefused(t *testing.T) {
	s := open(t, Config{InMemory: true, MaxEntryBytes: 1000})
	deep := &mvcc.Txn{}
	for range 20 {
		deep = &mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpTxn, Txn: deep}}}
	}
	put := func(key string) mvcc.Op { return mvcc.Op{Type: mvcc.OpPut, Key: key} }
	cases := map[string]struct {
		txn  mvcc.Txn
		want error
	}{
		"an empty key":           {mvcc.Txn{Success: []mvcc.Op{put("")}}, ErrInvalid},
		"a long key":             {mvcc.Txn{Success: []mvcc.Op{put(strings.Repeat("k", 9000))}}, ErrInvalid},
		"a put of a range":       {mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "a", RangeEnd: "b"}}}, ErrInvalid},
		"a nested nothing":       {mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpTxn}}}, ErrInvalid},
		"too deep a nest":        {*deep, ErrInvalid},
		"an unknown operation":   {mvcc.Txn{Success: []mvcc.Op{{Type: 9, Key: "a"}}}, ErrInvalid},
		"an unknown compare":     {mvcc.Txn{Compares: []mvcc.Compare{{Key: "a", Target: 9}}}, ErrInvalid},
		"a value to ignore":      {mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "a", Value: []byte("x"), IgnoreValue: true}}}, ErrInvalid},
		"a negative limit":       {mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpRange, Key: "a", Limit: -1}}}, ErrInvalid},
		"a key put twice":        {mvcc.Txn{Success: []mvcc.Op{put("a"), put("a")}}, ErrDuplicateKey},
		"a put under a delete":   {mvcc.Txn{Failure: []mvcc.Op{put("ab"), {Type: mvcc.OpDelete, Key: "a", RangeEnd: "b"}}}, ErrDuplicateKey},
		"a nested duplicate":     {mvcc.Txn{Success: []mvcc.Op{put("a"), {Type: mvcc.OpTxn, Txn: &mvcc.Txn{Failure: []mvcc.Op{put("a")}}}}}, ErrDuplicateKey},
		"too large a value":      {mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "a", Value: make([]byte, 1001)}}}, ErrTooLarge},
		"a lease that is not":    {mvcc.Txn{Success: []mvcc.Op{put("b"), {Type: mvcc.OpPut, Key: "a", Lease: 9}}}, ErrLeaseNotFound},
		"a value that is not":    {mvcc.Txn{Success: []mvcc.Op{put("b"), {Type: mvcc.OpPut, Key: "a", IgnoreValue: true}}}, ErrKeyNotFound},
		"branches that may meet": {mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpTxn, Txn: &mvcc.Txn{Success: []mvcc.Op{put("x")}, Failure: []mvcc.Op{put("x")}}}}}, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before := s.View().Revision()
			_, err := s.Txn(t.Context(), c.txn)
			if !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if c.want != nil && s.View().Revision() != before {
				t.Fatal("something was written")
			}
		})
	}
}

func TestAPutCanKeepValueOrLease(t *testing.T) {
	s := open(t, Config{InMemory: true})
	for id := mvcc.LeaseID(1); id <= 2; id++ {
		if _, err := s.LeaseGrant(t.Context(), id, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		op   mvcc.Op
		want string
	}{
		{mvcc.Op{Value: []byte("a"), Lease: 1}, "a 1"},
		{mvcc.Op{IgnoreValue: true, Lease: 2}, "a 2"},
		{mvcc.Op{Value: []byte("b"), IgnoreLease: true}, "b 2"},
		{mvcc.Op{IgnoreValue: true, IgnoreLease: true}, "b 2"},
		{mvcc.Op{}, " 0"},
	} {
		c.op.Type, c.op.Key = mvcc.OpPut, "/a"
		if _, err := s.Txn(t.Context(), mvcc.Txn{Success: []mvcc.Op{c.op}}); err != nil {
			t.Fatal(err)
		}
		if kv := s.View().Get("/a"); fmt.Sprintf("%s %d", kv.Value, kv.Lease) != c.want {
			t.Errorf("%+v gave %s %d, want %s", c.op, kv.Value, kv.Lease, c.want)
		}
	}
}

func TestConcurrentCompareAndSwapLosesNothing(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	const clients, each = 8, 25
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for n := 0; n < each; {
				kv := s.View().Get("/counter")
				rev, value := int64(0), 0
				if kv != nil {
					rev = kv.ModRevision
					value, _ = strconv.Atoi(string(kv.Value))
				}
				res, err := s.Txn(context.Background(), mvcc.Txn{
					Compares: []mvcc.Compare{mvcc.ModRevisionIs("/counter", rev)},
					Success:  []mvcc.Op{{Type: mvcc.OpPut, Key: "/counter", Value: []byte(strconv.Itoa(value + 1))}},
				})
				if err != nil {
					t.Error(err)
					return
				}
				if res.Succeeded {
					n++
				}
				if v := s.View(); v.Revision() < res.Revision {
					t.Errorf("an acknowledged write at %d is not in the view at %d", res.Revision, v.Revision())
				}
			}
		})
	}
	wg.Wait()
	if kv := s.View().Get("/counter"); string(kv.Value) != strconv.Itoa(clients*each) || kv.Version != clients*each {
		t.Fatalf("counter is %s, version %d", kv.Value, kv.Version)
	}
}

func TestAReadOnlyTxnWritesNoLog(t *testing.T) {
	s := open(t, Config{InMemory: true})
	rev := put(t, s, "/a", "1")
	before := s.Raft().LastIndex()
	res, err := s.Txn(t.Context(), mvcc.Txn{Compares: []mvcc.Compare{mvcc.ModRevisionIs("/a", rev)}, Success: []mvcc.Op{{Type: mvcc.OpRange, Key: "/a"}}})
	if err != nil || !res.Succeeded || len(res.Results[0].KVs) != 1 || res.Revision != rev {
		t.Fatalf("%+v, %v", res, err)
	}
	if after := s.Raft().LastIndex(); after != before {
		t.Fatalf("log grew from %d to %d", before, after)
	}
}

func TestAViewDoesNotChangeUnderWrites(t *testing.T) {
	s := open(t, Config{InMemory: true})
	for i := range 200 {
		put(t, s, fmt.Sprintf("/k/%03d", i), "old")
	}
	v := s.View()
	sum := v.Hash()
	for i := range 200 {
		put(t, s, fmt.Sprintf("/k/%03d", i), "new")
	}
	if v.Hash() != sum || v.Count("/k/", mvcc.PrefixEnd("/k/")) != 200 {
		t.Fatal("the view changed")
	}
	if back, err := s.ViewAt(v.Revision()); err != nil || back.Hash() != sum {
		t.Fatal("the revision reads differently now", err)
	}
}

func TestTheMemoStaysWithItsVersion(t *testing.T) {
	s := open(t, Config{InMemory: true})
	put(t, s, "/a", "1")
	old := s.View().Get("/a")
	if old.Memo() != nil {
		t.Fatal(old.Memo())
	}
	old.SetMemo("decoded")
	if got := s.View().Get("/a").Memo(); got != "decoded" {
		t.Fatal(got)
	}
	put(t, s, "/a", "2")
	if s.View().Get("/a").Memo() != nil || old.Memo() != "decoded" {
		t.Fatal("memos are mixed up")
	}
}

func TestTheEndOfAContextEndsACall(t *testing.T) {
	s := open(t, Config{InMemory: true})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Txn(ctx, mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/a"}}}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := s.Barrier(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := s.Campaign(ctx, "x", "y", time.Second); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestAClosedStoreSaysSo(t *testing.T) {
	s := open(t, Config{InMemory: true})
	put(t, s, "/a", "1")
	s.Close()
	if _, err := s.Txn(t.Context(), mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/a"}}}); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if _, err := s.Watch(WatchRequest{Key: "/a"}); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if !errors.Is(s.Err(), ErrClosed) || s.View().Get("/a") == nil {
		t.Fatal(s.Err())
	}
}

func TestAConfigurationReportsEveryFault(t *testing.T) {
	_, err := Open(Config{HeartbeatTimeout: time.Millisecond, LeaderLease: time.Second, HistoryEvents: -1, LogKind: "paper"})
	if !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	for _, part := range []string{"Dir", "HeartbeatTimeout", "LeaderLease", "HistoryEvents", "LogKind"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not mention %s", err, part)
		}
	}
}

func TestRetention(t *testing.T) {
	base := time.Now()
	at := func(min int) time.Time { return base.Add(time.Duration(min) * time.Minute) }
	state := mvcc.NewState()
	for state.Rev < 101 {
		written(state, "k", nil)
	}
	h := state.Capture().Hist
	r := retention{age: 5 * time.Minute, events: 1000, bytes: 1 << 30}
	for min, want := range []int64{0, 0, 0, 0, 0, 20, 30, 40} {
		if got := r.decide(at(min), &h, int64(20+10*min)); got != want {
			t.Errorf("after %d min: compact to %d, want %d", min, got, want)
		}
	}
	full := retention{age: time.Hour, events: 50, bytes: 1 << 30}
	if got := full.decide(at(0), &h, 101); got != 51 {
		t.Errorf("too many events: compact to %d, want 51", got)
	}
	heavy := retention{age: time.Hour, events: 1000, bytes: 100}
	if got := heavy.decide(at(0), &h, 101); got != 51 {
		t.Errorf("too many bytes: compact to %d, want 51", got)
	}
}

func TestWantSnapshot(t *testing.T) {
	const least = 1000
	for _, c := range []struct {
		what                  string
		entries, bytes, state int64
		want                  bool
	}{
		{"a short log", 999, 1 << 20, 0, false},
		{"a long log of a small state", 1000, 1 << 20, 1 << 20, true},
		{"a long log next to a large state", 1000, 1 << 20, 1 << 30, false},
		{"a very long log", 4000, 1 << 20, 1 << 30, true},
		{"few but huge entries", 10, 1 << 30, 0, true},
	} {
		if got := wantSnapshot(c.entries, c.bytes, least, c.state); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}
