package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/balsahq/balsa/raftstore"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// outside is the state of the store outside the clients' prefix.
func outsidePrefix(s *raftstore.Store) map[string]string {
	out := map[string]string{}
	s.View().Ascend("", "\x00", func(kv *raftstore.KeyValue) bool {
		if !strings.HasPrefix(kv.Key, "/balsa/etcd/") {
			out[kv.Key] = string(kv.Value)
		}
		return true
	})
	return out
}

func put(t *testing.T, s *raftstore.Store, key, value string) {
	t.Helper()
	_, err := s.Txn(within(t), raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpPut, Key: key, Value: []byte(value)}}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestNoRangeReachesBesideThePrefix(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx, c := within(t), f.client(t, "client")
	foreign := []string{"\x00", "a", "/balsa/etcd", "/balsa/etcd.", "/balsa/etcd0", "/balsa/etcd/"[:11] + "\x2e", "/registry/pods/x", "\xff\xff"}
	for _, k := range foreign {
		put(t, f.store, k, "foreign")
	}
	for _, k := range []string{"\x00", "\x00\x00", "a", "b", "/registry/pods/y", "\xff", "\xff\xff\xff"} {
		if _, err := c.Put(ctx, k, "mine"); err != nil {
			t.Fatal(err)
		}
	}
	before := outsidePrefix(f.store)
	ends := []string{"", "\x00", "\x00\x00", "a", "b", "z", "\xff", "\xff\xff", "/", "0"}
	for _, start := range []string{"\x00", "a", "/", "\xff", "\xff\xff\xff\xff"} {
		for _, end := range ends {
			res, err := c.Get(ctx, start, clientv3.WithRange(end))
			if err != nil {
				t.Fatal(err)
			}
			for _, kv := range res.Kvs {
				if string(kv.Value) != "mine" {
					t.Fatalf("range %q %q shows %q=%q", start, end, kv.Key, kv.Value)
				}
			}
		}
	}
	all, err := c.Get(ctx, "\x00", clientv3.WithRange("\x00"))
	if err != nil || all.Count != 7 {
		t.Fatalf("everything is %d keys, %v", all.Count, err)
	}
	w := c.Watch(ctx, "\x00", clientv3.WithRange("\x00"))
	for _, start := range []string{"a", "/", "\xff", "\x00"} {
		for _, end := range ends {
			if _, err := c.Delete(ctx, start, clientv3.WithRange(end)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if after := outsidePrefix(f.store); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Fatalf("deletes changed what is outside: %v, was %v", after, before)
	}
	put(t, f.store, "/registry/pods/z", "foreign")
	if _, err := c.Put(ctx, "last", "mine"); err != nil {
		t.Fatal(err)
	}
	for done := false; !done; {
		for _, e := range (<-w).Events {
			if strings.Contains(string(e.Kv.Key), "balsa") || string(e.Kv.Value) == "foreign" {
				t.Fatalf("watch shows %q", e.Kv.Key)
			}
			done = done || string(e.Kv.Key) == "last"
		}
	}
}

func TestRangeOptions(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx, c := within(t), f.client(t, "client")
	var revs []int64
	for i := range 10 {
		r, err := c.Put(ctx, fmt.Sprintf("k%d", i), fmt.Sprintf("v%d", (i*7)%10))
		if err != nil {
			t.Fatal(err)
		}
		revs = append(revs, r.Header.Revision)
	}
	get := func(opts ...clientv3.OpOption) *clientv3.GetResponse {
		t.Helper()
		r, err := c.Get(ctx, "k", append([]clientv3.OpOption{clientv3.WithPrefix()}, opts...)...)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	keys := func(r *clientv3.GetResponse) (s string) {
		for _, kv := range r.Kvs {
			s += string(kv.Key)
		}
		return s
	}
	for _, c := range []struct {
		name  string
		res   *clientv3.GetResponse
		keys  string
		count int64
		more  bool
	}{
		{"limit", get(clientv3.WithLimit(3)), "k0k1k2", 10, true},
		{"limit that fits", get(clientv3.WithLimit(10)), "k0k1k2k3k4k5k6k7k8k9", 10, false},
		{"count only", get(clientv3.WithCountOnly()), "", 10, false},
		{"descending by key", get(clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(2)), "k9k8", 10, true},
		{"by value", get(clientv3.WithSort(clientv3.SortByValue, clientv3.SortAscend), clientv3.WithLimit(3)), "k0k3k6", 10, true},
		{"by value without an order", get(clientv3.WithSort(clientv3.SortByValue, clientv3.SortNone), clientv3.WithLimit(2)), "k0k3", 10, true},
		{"from a mod revision", get(clientv3.WithMinModRev(revs[8])), "k8k9", 10, false},
		{"up to a mod revision", get(clientv3.WithMaxModRev(revs[1]), clientv3.WithLimit(1)), "k0", 10, true},
		{"from a create revision", get(clientv3.WithMinCreateRev(revs[9])), "k9", 10, false},
		{"up to a create revision", get(clientv3.WithMaxCreateRev(revs[0])), "k0", 10, false},
		{"at an older revision", get(clientv3.WithRev(revs[2])), "k0k1k2", 3, false},
		{"serializable", get(clientv3.WithSerializable(), clientv3.WithLimit(1)), "k0", 10, true},
	} {
		if keys(c.res) != c.keys || c.res.Count != c.count || c.res.More != c.more {
			t.Errorf("%s: %s, %d, %v", c.name, keys(c.res), c.res.Count, c.res.More)
		}
		if c.res.Header.Revision != revs[9] {
			t.Errorf("%s: header says revision %d", c.name, c.res.Header.Revision)
		}
	}
	for _, kv := range get(clientv3.WithKeysOnly()).Kvs {
		if len(kv.Value) > 0 || kv.ModRevision == 0 {
			t.Fatalf("keys only: %v", kv)
		}
	}
	if _, err := c.Get(ctx, "k", clientv3.WithRev(revs[9]+1)); !errors.Is(err, rpctypes.ErrFutureRev) {
		t.Fatal(err)
	}
}

func TestErrorsAreThoseClientsKnow(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx, c := within(t), f.client(t, "client")
	many := make([]clientv3.Op, 129)
	for i := range many {
		many[i] = clientv3.OpPut(fmt.Sprint(i), "")
	}
	txn := func(ops ...clientv3.Op) error { _, err := c.Txn(ctx).Then(ops...).Commit(); return err }
	errOf := func(_ any, err error) error { return err }
	for name, e := range map[string]struct{ got, want error }{
		"empty key":         {errOf(c.Put(ctx, "", "v")), rpctypes.ErrEmptyKey},
		"value provided":    {errOf(c.Put(ctx, "k", "v", clientv3.WithIgnoreValue())), rpctypes.ErrValueProvided},
		"nothing to keep":   {errOf(c.Put(ctx, "absent", "", clientv3.WithIgnoreValue())), rpctypes.ErrKeyNotFound},
		"lease not found":   {errOf(c.Put(ctx, "k", "v", clientv3.WithLease(4242))), rpctypes.ErrLeaseNotFound},
		"odd lease":         {errOf(c.Put(ctx, "k", "v", clientv3.WithLease(4243))), rpctypes.ErrLeaseNotFound},
		"revoke nothing":    {errOf(c.Revoke(ctx, 4242)), rpctypes.ErrLeaseNotFound},
		"too large":         {errOf(c.Put(ctx, "k", strings.Repeat("x", 3<<19))), rpctypes.ErrRequestTooLarge},
		"too many":          {txn(many...), rpctypes.ErrTooManyOps},
		"put twice":         {txn(clientv3.OpPut("k", "1"), clientv3.OpPut("k", "2")), rpctypes.ErrDuplicateKey},
		"put and delete":    {txn(clientv3.OpPut("k", "1"), clientv3.OpDelete("a", clientv3.WithFromKey())), rpctypes.ErrDuplicateKey},
		"future compact":    {errOf(c.Compact(ctx, 1<<40)), rpctypes.ErrFutureRev},
		"future in a txn":   {txn(clientv3.OpGet("k", clientv3.WithRev(1<<40))), rpctypes.ErrFutureRev},
		"long lease":        {errOf(c.Grant(ctx, 1<<40)), rpctypes.ErrLeaseTTLTooLarge},
		"user and password": {errOf(c.Authenticate(ctx, "u", "p")), rpctypes.ErrAuthNotEnabled},
	} {
		if !errors.Is(e.got, e.want) {
			t.Errorf("%s: %v, want %v", name, e.got, e.want)
		}
	}
	if _, err := c.MemberAdd(ctx, []string{"http://h:1"}); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "balsa members") {
		t.Errorf("member add: %v", err)
	}
	if err := wireError(ctx, context.DeadlineExceeded); !errors.Is(rpctypes.Error(err), rpctypes.ErrTimeout) {
		t.Errorf("our deadline: %v", err)
	}
}

func TestTransactions(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx, c := within(t), f.client(t, "client")
	first, err := c.Put(ctx, "a", "1")
	if err != nil {
		t.Fatal(err)
	}
	put(t, f.store, "/registry/x", "y") // the revision is everybody's
	res, err := c.Txn(ctx).
		If(clientv3.Compare(clientv3.Value("a"), "=", "1"), clientv3.Compare(clientv3.CreateRevision("b"), "=", 0),
			clientv3.Compare(clientv3.Version("a").WithRange("b"), "<", 2), clientv3.Compare(clientv3.ModRevision("a"), "!=", 0)).
		Then(clientv3.OpPut("b", "2", clientv3.WithPrevKV()), clientv3.OpPut("a", "3", clientv3.WithPrevKV()),
			clientv3.OpGet("a"), clientv3.OpGet("a", clientv3.WithRev(first.Header.Revision)),
			clientv3.OpGet("a", clientv3.WithFromKey(), clientv3.WithSort(clientv3.SortByValue, clientv3.SortDescend), clientv3.WithLimit(1)),
			clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.LeaseValue("a"), ">", 0)}, nil,
				[]clientv3.Op{clientv3.OpDelete("c", clientv3.WithFromKey()), clientv3.OpPut("bb", "4")})).
		Commit()
	if err != nil {
		t.Fatal(err)
	}
	if !res.Succeeded || len(res.Responses) != 6 || res.Header.Revision != first.Header.Revision+2 {
		t.Fatalf("%+v", res)
	}
	r := res.Responses
	if r[0].GetResponsePut().PrevKv != nil || string(r[1].GetResponsePut().PrevKv.Value) != "1" {
		t.Errorf("previous: %v %v", r[0], r[1])
	}
	if v := r[2].GetResponseRange().Kvs[0]; string(v.Value) != "3" || v.ModRevision != res.Header.Revision || string(v.Key) != "a" {
		t.Errorf("own write: %v", v)
	}
	if v := r[3].GetResponseRange(); len(v.Kvs) != 1 || string(v.Kvs[0].Value) != "1" {
		t.Errorf("the past: %v", v)
	}
	if v := r[4].GetResponseRange(); len(v.Kvs) != 1 || string(v.Kvs[0].Key) != "a" || !v.More || v.Count != 2 {
		t.Errorf("sorted: %v", v)
	}
	if v := r[5].GetResponseTxn(); v.Succeeded || len(v.Responses) != 2 || v.Responses[0].GetResponseDeleteRange().Deleted != 0 {
		t.Errorf("nested: %v", v)
	}
	del, err := c.Delete(ctx, "a", clientv3.WithPrefix(), clientv3.WithPrevKV())
	if err != nil || del.Deleted != 1 || !bytes.Equal(del.PrevKvs[0].Value, []byte("3")) || string(del.PrevKvs[0].Key) != "a" {
		t.Fatalf("%v %v", del, err)
	}
}

func TestCompactionIsTheClientsOwn(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx, c := within(t), f.client(t, "client")
	var revs []int64
	for i := range 5 {
		r, err := c.Put(ctx, "k", fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		revs = append(revs, r.Header.Revision)
	}
	if _, err := c.Compact(ctx, revs[3]); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(ctx, revs[3]); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Fatalf("again: %v", err)
	}
	if _, err := c.Get(ctx, "k", clientv3.WithRev(revs[2])); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Fatalf("before: %v", err)
	}
	if r, err := c.Get(ctx, "k", clientv3.WithRev(revs[3])); err != nil || string(r.Kvs[0].Value) != "3" {
		t.Fatalf("at: %v %v", r, err)
	}
	if _, err := f.store.ViewAt(revs[0]); err != nil {
		t.Fatalf("the store's history was cut: %v", err)
	}
	wr := <-c.Watch(ctx, "k", clientv3.WithRev(revs[1]))
	if wr.CompactRevision != revs[3] || !wr.Canceled {
		t.Fatalf("watch: %+v", wr)
	}
	// What the store has let go of is compacted, too.
	put(t, f.store, "/registry/x", "y")
	now := f.store.View().Revision()
	if err := f.store.Compact(ctx, now); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(ctx, "k", clientv3.WithRev(now-1)); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Fatalf("the store's: %v", err)
	}
	wr = <-c.Watch(ctx, "k", clientv3.WithRev(now))
	if wr.CompactRevision != now+1 {
		t.Fatalf("watch after the store's: %+v", wr)
	}
}

func TestWhoMayCall(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx := within(t)
	f.ca.issue(t, "node", "system:node:a", "system:nodes")
	if _, err := f.client(t, "").Get(ctx, "k"); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "client certificate") {
		t.Errorf("nobody: %v", err)
	}
	if _, err := f.client(t, "node").Get(ctx, "k"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a node: %v", err)
	}
	wr, ok := <-f.client(t, "node").Watch(ctx, "k")
	if ok && wr.Err() == nil {
		t.Errorf("a node's watch: %+v", wr)
	}
	if _, err := f.client(t, "client").Get(ctx, "k"); err != nil {
		t.Error(err)
	}
}
