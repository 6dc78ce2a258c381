package etcd

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balsahq/balsa/raftstore"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"pgregory.net/rapid"
)

// served is an etcd, ours or the real one, seen as the model is: keys below a
// prefix, revisions as numbers of writes.
type served struct {
	c      *clientv3.Client
	prefix string
	revs   []int64                  // of write number n
	high   int64                    // the revision last heard of
	leases map[int]clientv3.LeaseID // the last one granted, by slot
	slots  map[clientv3.LeaseID]int // of every lease there was
}

func newServed(ctx context.Context, c *clientv3.Client, prefix string) (*served, error) {
	r, err := c.Put(ctx, "begin", prefix) // later than what others have compacted
	if err != nil {
		return nil, err
	}
	rev := r.Header.Revision
	return &served{c: c, prefix: prefix, revs: []int64{rev}, high: rev, leases: map[int]clientv3.LeaseID{}, slots: map[clientv3.LeaseID]int{}}, nil
}

// revision is that of write number n, one in the future past the last.
func (s *served) revision(n int) int64 {
	if n >= len(s.revs) {
		return s.revs[len(s.revs)-1] + 1_000_000
	}
	return s.revs[n]
}

// number is that of the last write at a revision.
func (s *served) number(rev int64) int {
	n, _ := slices.BinarySearch(s.revs, rev+1)
	return n - 1
}

func (s *served) version(kv *mvccpb.KeyValue) version {
	v := version{key: strings.TrimPrefix(string(kv.Key), s.prefix), value: string(kv.Value),
		created: s.number(kv.CreateRevision), mod: s.number(kv.ModRevision), version: int(kv.Version)}
	v.lease = s.slots[clientv3.LeaseID(kv.Lease)]
	return v
}

func (s *served) versions(kvs []*mvccpb.KeyValue) []version {
	var out []version
	for _, kv := range kvs {
		out = append(out, s.version(kv))
	}
	return out
}

func (s *served) end(end string) []clientv3.OpOption {
	if end == "" {
		return nil
	}
	return []clientv3.OpOption{clientv3.WithRange(s.prefix + end)}
}

func (s *served) op(op any) clientv3.Op {
	switch o := op.(type) {
	case getOp:
		opts := append(s.end(o.end), clientv3.WithLimit(int64(o.limit)), clientv3.WithSort(o.by, o.order))
		if o.at >= 0 {
			opts = append(opts, clientv3.WithRev(s.revision(o.at)))
		}
		for _, b := range []struct {
			n    int
			with func(int64) clientv3.OpOption
		}{{o.minMod, clientv3.WithMinModRev}, {o.maxMod, clientv3.WithMaxModRev}, {o.minNew, clientv3.WithMinCreateRev}, {o.maxNew, clientv3.WithMaxCreateRev}} {
			if b.n > 0 {
				opts = append(opts, b.with(s.revision(b.n)))
			}
		}
		if o.keysOnly {
			opts = append(opts, clientv3.WithKeysOnly())
		}
		if o.countOnly {
			opts = append(opts, clientv3.WithCountOnly())
		}
		return clientv3.OpGet(s.prefix+o.start, opts...)
	case putOp:
		var opts []clientv3.OpOption
		if o.prev {
			opts = append(opts, clientv3.WithPrevKV())
		}
		if o.ignoreValue {
			opts = append(opts, clientv3.WithIgnoreValue())
		}
		if o.ignoreLease {
			opts = append(opts, clientv3.WithIgnoreLease())
		}
		if o.lease != 0 {
			id := s.leases[o.lease]
			if id == 0 {
				id = 2 // nobody's
			}
			opts = append(opts, clientv3.WithLease(id))
		}
		return clientv3.OpPut(s.prefix+o.key, o.value, opts...)
	case delOp:
		opts := s.end(o.end)
		if o.prev {
			opts = append(opts, clientv3.WithPrevKV())
		}
		return clientv3.OpDelete(s.prefix+o.start, opts...)
	case txnOp:
		return clientv3.OpTxn(s.compares(o.ifs), s.ops(o.then), s.ops(o.else_))
	}
	panic(op)
}

func (s *served) ops(in []any) []clientv3.Op {
	var out []clientv3.Op
	for _, op := range in {
		out = append(out, s.op(op))
	}
	return out
}

func (s *served) compares(in []cmpOp) []clientv3.Cmp {
	var out []clientv3.Cmp
	for _, c := range in {
		key := s.prefix + c.start
		var x clientv3.Cmp
		switch c.target {
		case "value":
			x = clientv3.Compare(clientv3.Value(key), c.relation, c.value)
		case "version":
			x = clientv3.Compare(clientv3.Version(key), c.relation, c.n)
		case "create":
			x = clientv3.Compare(clientv3.CreateRevision(key), c.relation, s.exact(c.n))
		case "mod":
			x = clientv3.Compare(clientv3.ModRevision(key), c.relation, s.exact(c.n))
		}
		if c.end != "" {
			x = x.WithRange(s.prefix + c.end)
		}
		out = append(out, x)
	}
	return out
}

// exact is a revision to compare with: 0 stays 0, which no key has.
func (s *served) exact(n int) int64 {
	if n == 0 {
		return 0
	}
	return s.revision(n)
}

func (s *served) do(ctx context.Context, op any) string {
	var (
		out string
		rev int64
		err error
	)
	switch o := op.(type) {
	case compactOp:
		var r *clientv3.CompactResponse
		if r, err = s.c.Compact(ctx, s.revision(o.at)); err == nil {
			s.high = r.Header.Revision
		}
		out = "ok"
	case grantOp:
		var r *clientv3.LeaseGrantResponse
		if r, err = s.c.Grant(ctx, 3600); err == nil {
			s.leases[o.slot], s.slots[r.ID] = r.ID, o.slot
		}
		out = "ok"
	case revokeOp:
		var r *clientv3.LeaseRevokeResponse
		id := s.leases[o.slot]
		if id == 0 {
			id = 2
		}
		if r, err = s.c.Revoke(ctx, id); err == nil {
			out = "ok"
			if r.Header.Revision > s.high {
				s.revs = append(s.revs, r.Header.Revision)
			}
			s.high = r.Header.Revision
		}
	default:
		var r clientv3.OpResponse
		if r, err = s.c.Do(ctx, s.op(op)); err == nil {
			rev, out = s.response(op, r)
			s.high = rev
			out = fmt.Sprintf("%d %s", s.number(rev), out)
		}
	}
	switch {
	case err == nil:
		return out
	case errIn(err, rpctypes.ErrKeyNotFound, rpctypes.ErrLeaseNotFound):
		return notFound // which of the two is checked first is nobody's business
	}
	return "error: " + err.Error()
}

func errIn(err error, among ...error) bool { return slices.Contains(among, err) }

// response formats an answer as the model does, and notes the revision of what
// was written.
func (s *served) response(op any, r clientv3.OpResponse) (int64, string) {
	var rev int64
	switch o := op.(type) {
	case getOp:
		return r.Get().Header.Revision, s.get(o, (*pb.RangeResponse)(r.Get()))
	case putOp:
		rev = r.Put().Header.Revision
	case delOp:
		rev = r.Del().Header.Revision
	case txnOp:
		rev = r.Txn().Header.Revision
	}
	if wrote(op, r) {
		s.revs = append(s.revs, rev)
	}
	switch o := op.(type) {
	case putOp:
		return rev, s.prev(r.Put().PrevKv)
	case delOp:
		return rev, fmt.Sprintf("%d %v", r.Del().Deleted, s.versions(r.Del().PrevKvs))
	default:
		return rev, s.txn(o.(txnOp), (*pb.TxnResponse)(r.Txn()))
	}
}

func wrote(op any, r clientv3.OpResponse) bool {
	switch op.(type) {
	case putOp:
		return true
	case delOp:
		return r.Del().Deleted > 0
	}
	return txnWrote((*pb.TxnResponse)(r.Txn()))
}

func txnWrote(r *pb.TxnResponse) bool {
	return slices.ContainsFunc(r.Responses, func(o *pb.ResponseOp) bool {
		return o.GetResponsePut() != nil || o.GetResponseDeleteRange().GetDeleted() > 0 || o.GetResponseTxn() != nil && txnWrote(o.GetResponseTxn())
	})
}

func (s *served) prev(kv *mvccpb.KeyValue) string {
	if kv == nil {
		return "-"
	}
	return s.version(kv).String()
}

func (s *served) get(o getOp, r *pb.RangeResponse) string {
	kvs := s.versions(r.Kvs)
	if o.by != clientv3.SortByKey { // keys that are equal come in any order
		ordered := slices.IsSortedFunc(kvs, func(a, b version) int {
			n := map[clientv3.SortTarget]int{
				clientv3.SortByVersion: a.version - b.version, clientv3.SortByCreateRevision: a.created - b.created,
				clientv3.SortByModRevision: a.mod - b.mod, clientv3.SortByValue: strings.Compare(a.value, b.value),
			}[o.by]
			if o.order == clientv3.SortDescend {
				return -n
			}
			return n
		})
		if !ordered && !o.keysOnly {
			return fmt.Sprint("not in order: ", kvs)
		}
		slices.SortFunc(kvs, func(a, b version) int { return strings.Compare(a.key, b.key) })
	}
	return fmt.Sprintf("{%d %v %v}", r.Count, r.More, kvs)
}

func (s *served) txn(o txnOp, r *pb.TxnResponse) string {
	var out []string
	for i, op := range o.branch(r.Succeeded) {
		res := r.Responses[i]
		switch in := op.(type) {
		case getOp:
			out = append(out, s.get(in, res.GetResponseRange()))
		case putOp:
			out = append(out, s.prev(res.GetResponsePut().PrevKv))
		case delOp:
			out = append(out, fmt.Sprintf("%d %v", res.GetResponseDeleteRange().Deleted, s.versions(res.GetResponseDeleteRange().PrevKvs)))
		case txnOp:
			out = append(out, s.txn(in, res.GetResponseTxn()))
		}
	}
	return fmt.Sprintf("%v%v", r.Succeeded, out)
}

// history is the n events there are after write number from, as a watch tells
// them.
func (s *served) history(ctx context.Context, from, n int) []string {
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	var out []string
	ch := s.c.Watch(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithRev(s.revs[from]+1))
	for len(out) < n {
		r, ok := <-ch
		if !ok || r.Err() != nil {
			return append(out, fmt.Sprint("ended: ", r.Err()))
		}
		for _, e := range r.Events {
			at := s.number(e.Kv.ModRevision)
			if e.Type == clientv3.EventTypeDelete {
				out = append(out, fmt.Sprintf("%d DELETE %s was %s", at, strings.TrimPrefix(string(e.Kv.Key), s.prefix), s.prev(e.PrevKv)))
				continue
			}
			out = append(out, fmt.Sprintf("%d PUT %v was %s", at, s.version(e.Kv), s.prev(e.PrevKv)))
		}
	}
	return out
}

// realEtcd starts the etcd that BALSA_ETCD names, nil without one.
func realEtcd(t *testing.T) *clientv3.Client {
	bin := os.Getenv("BALSA_ETCD")
	if bin == "" {
		return nil
	}
	addr := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return "http://" + l.Addr().String()
	}
	url, peer := addr(), addr()
	cmd := exec.Command(bin, "--data-dir", t.TempDir(), "--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--log-level", "error", "--unsafe-no-fsync")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, DialTimeout: 20 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestAnswersAreEtcds runs random operations against this API, against a model,
// and, where BALSA_ETCD names the program, against a real etcd. All of them must
// say the same.
func TestAnswersAreEtcds(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	clients := map[string]*clientv3.Client{"balsa": f.client(t, "client")}
	if c := realEtcd(t); c != nil {
		clients["etcd"] = c
	}
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		round++
		all := map[string]*served{}
		for name, c := range clients {
			s, err := newServed(ctx, c, fmt.Sprintf("round-%d/", round))
			if err != nil {
				rt.Fatal(err)
			}
			all[name] = s
		}
		m, p := newModel(), &plan{t: rt}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			op := p.step()
			if g, is := op.(grantOp); is && m.leases[g.slot] {
				continue
			}
			want := m.do(op)
			p.writes = m.now()
			for name, s := range all {
				if got := s.do(ctx, op); got != want {
					rt.Fatalf("%#v\n%s: %s\n model: %s", op, name, got, want)
				}
			}
		}
		from := max(m.compacted, 0)
		want := m.history(from)
		for name, s := range all {
			if got := s.history(ctx, from, len(want)); !slices.Equal(got, want) {
				rt.Fatalf("%s watched\n%s\n model\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if r, ok := s.leases[1]; ok {
				_, _ = s.c.Revoke(ctx, r)
			}
		}
	})
}
