package etcd

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/balsahq/balsa/raftstore"
	bolt "go.etcd.io/bbolt"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func TestLeases(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx, c := within(t), f.client(t, "client")
	g, err := c.Grant(ctx, 60)
	if err != nil || g.TTL != 60 {
		t.Fatalf("%v %v", g, err)
	}
	for _, k := range []string{"a", "b"} {
		if _, err := c.Put(ctx, k, "v", clientv3.WithLease(g.ID)); err != nil {
			t.Fatal(err)
		}
	}
	ttl, err := c.TimeToLive(ctx, g.ID, clientv3.WithAttachedKeys())
	if err != nil || ttl.GrantedTTL != 60 || ttl.TTL < 50 || fmt.Sprintf("%s", ttl.Keys) != "[a b]" {
		t.Fatalf("%+v %v", ttl, err)
	}
	if ka, err := c.KeepAliveOnce(ctx, g.ID); err != nil || ka.TTL != 60 {
		t.Fatalf("%+v %v", ka, err)
	}
	if _, err := c.KeepAliveOnce(ctx, g.ID+2); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Fatal(err)
	}
	if _, err := c.Revoke(ctx, g.ID); err != nil {
		t.Fatal(err)
	}
	if r, err := c.Get(ctx, "a", clientv3.WithFromKey()); err != nil || r.Count != 0 {
		t.Fatalf("%v %v", r, err)
	}
	if ttl, err = c.TimeToLive(ctx, g.ID); err != nil || ttl.TTL != -1 {
		t.Fatalf("%+v %v", ttl, err)
	}
	short, err := c.Grant(ctx, 4)
	if err != nil {
		t.Fatal(err)
	}
	written, err := c.Put(ctx, "short", "v", clientv3.WithLease(short.ID))
	if err != nil {
		t.Fatal(err)
	}
	for r := range c.Watch(ctx, "short", clientv3.WithFilterPut(), clientv3.WithRev(written.Header.Revision)) {
		if len(r.Events) > 0 {
			return
		}
	}
	t.Fatal("the key of a lease that ran out is still there")
}

func TestLeasesOfOthersAreOutOfReach(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx, c := within(t), f.client(t, "client")
	foreign, err := f.store.LeaseGrant(ctx, 0, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if foreign&1 == 0 {
		t.Fatalf("the store picked the even ID %d, which this API takes for its own", foreign)
	}
	id := clientv3.LeaseID(foreign)
	if _, err := c.Revoke(ctx, id); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Fatalf("revoke: %v", err)
	}
	if _, err := c.KeepAliveOnce(ctx, id); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Fatalf("keep alive: %v", err)
	}
	if r, err := c.TimeToLive(ctx, id); err != nil || r.TTL != -1 {
		t.Fatalf("time to live: %v %v", r, err)
	}
	// A client may choose any ID that is free, and its own it finds again.
	lc := pb.NewLeaseClient(c.ActiveConnection())
	for _, want := range []int64{99, 100} {
		if g, err := lc.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: want, TTL: 60}); err != nil || g.ID != want {
			t.Fatalf("%v %v", g, err)
		}
		if _, err := c.Put(ctx, "k", "v", clientv3.WithLease(clientv3.LeaseID(want))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := lc.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: 99, TTL: 60}); !errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseExist) {
		t.Fatal(err)
	}
	l, err := c.Leases(ctx)
	if err != nil || len(l.Leases) != 2 || l.Leases[0].ID != 99 || l.Leases[1].ID != 100 {
		t.Fatalf("%v %v", l, err)
	}
	if _, err := c.Revoke(ctx, 99); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(ctx, "k", "v", clientv3.WithLease(99)); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Fatal(err)
	}
}

func TestLocksAndElectionsOfTheClientLibrary(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx := within(t)
	order := make(chan int, 4)
	var first *concurrency.Session
	for i := range 2 {
		s, err := concurrency.NewSession(f.client(t, "client"), concurrency.WithTTL(10))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		m := concurrency.NewMutex(s, "lock")
		if i == 0 {
			first = s
			if err := m.Lock(ctx); err != nil {
				t.Fatal(err)
			}
			order <- 0
			continue
		}
		if err := m.TryLock(ctx); !errors.Is(err, concurrency.ErrLocked) {
			t.Fatalf("try: %v", err)
		}
		done := make(chan error, 1)
		go func() {
			done <- m.Lock(ctx)
			order <- 1
		}()
		if err := first.Close(); err != nil { // its lease goes, and the lock with it
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		e := concurrency.NewElection(s, "election")
		if err := e.Campaign(ctx, "me"); err != nil {
			t.Fatal(err)
		}
		if r, err := e.Leader(ctx); err != nil || string(r.Kvs[0].Value) != "me" {
			t.Fatalf("%v %v", r, err)
		}
	}
	if a, b := <-order, <-order; a != 0 || b != 1 {
		t.Fatal(a, b)
	}
}

func TestMaintenance(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx, c := within(t), f.client(t, "client")
	for i := range 20 {
		if _, err := c.Put(ctx, fmt.Sprint(i), "v"); err != nil {
			t.Fatal(err)
		}
	}
	ep := c.Endpoints()[0]
	st, err := c.Status(ctx, ep)
	if err != nil || st.Version != "3.6.8" || st.Leader != st.Header.MemberId || st.Leader == 0 || st.RaftTerm == 0 || st.RaftIndex == 0 || st.DbSize == 0 || len(st.Errors) > 0 {
		t.Fatalf("%+v %v", st, err)
	}
	ml, err := c.MemberList(ctx)
	if err != nil || len(ml.Members) != 1 || ml.Members[0].ID != st.Header.MemberId {
		t.Fatalf("%+v %v", ml, err)
	}
	rev := st.Header.Revision
	a, err := c.HashKV(ctx, ep, rev)
	if err != nil {
		t.Fatal(err)
	}
	put(t, f.store, "/registry/x", "y") // not of the clients' keys
	if b, err := c.HashKV(ctx, ep, 0); err != nil || b.Hash != a.Hash {
		t.Fatalf("%v %v, want %v", b, err, a)
	}
	if _, err := c.Put(ctx, "k", "v"); err != nil {
		t.Fatal(err)
	}
	if b, err := c.HashKV(ctx, ep, rev); err != nil || b.Hash != a.Hash || b.HashRevision != rev {
		t.Fatalf("%v %v, want %v", b, err, a)
	}
	if b, err := c.HashKV(ctx, ep, 0); err != nil || b.Hash == a.Hash {
		t.Fatalf("%v %v: as before the change", b, err)
	}
	if al, err := c.AlarmList(ctx); err != nil || len(al.Alarms) > 0 {
		t.Fatalf("%v %v", al, err)
	}
	if _, err := c.Defragment(ctx, ep); err != nil {
		t.Fatal(err)
	}
	if as, err := c.AuthStatus(ctx); err != nil || as.Enabled {
		t.Fatalf("%v %v", as, err)
	}
	if _, err := c.MoveLeader(ctx, 12345); !errors.Is(err, rpctypes.ErrBadLeaderTransferee) {
		t.Fatal(err)
	}
}

func TestSnapshotIsAFileOfEtcds(t *testing.T) {
	f := serve(t, raftstore.Config{}, nil)
	ctx, c := within(t), f.client(t, "client")
	put(t, f.store, "/registry/secrets/x", "secret")
	if _, err := c.Txn(ctx).Then(clientv3.OpPut("b", "2"), clientv3.OpPut("a", "1")).Commit(); err != nil {
		t.Fatal(err)
	}
	r, err := c.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	n := len(data) - sha256.Size
	if n <= 0 || n%512 != 0 || sha256.Sum256(data[:n]) != [32]byte(data[n:]) {
		t.Fatalf("%d bytes and a checksum that does not match", n)
	}
	path := filepath.Join(t.TempDir(), "db")
	if err := os.WriteFile(path, data[:n], 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	got := ""
	err = db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("key")).ForEach(func(k, v []byte) error {
			var kv mvccpb.KeyValue
			got += fmt.Sprintf("%x:", k[9:])
			err := kv.Unmarshal(v)
			got += string(kv.Key) + "=" + string(kv.Value) + " "
			return err
		})
	})
	if err != nil || got != "0000000000000000:a=1 0000000000000001:b=2 " {
		t.Fatalf("%s %v", got, err)
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	if _, err := New(Config{Prefix: "x", MaxTxnOps: -1}); err == nil {
		t.Fatal("accepted")
	} else {
		t.Log(err)
	}
}
