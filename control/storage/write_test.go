package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	storeerrors "k8s.io/apiserver/pkg/storage/errors"

	"github.com/balsahq/balsa/raftstore"
)

func pod(ns, name string) *example.Pod {
	return &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
}

func podKey(p *example.Pod) string { return fmt.Sprintf("/pods/%s/%s", p.Namespace, p.Name) }

func create(t testing.TB, s *store, p *example.Pod) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	if err := s.Create(context.Background(), podKey(p), p, out, 0); err != nil {
		t.Fatal(err)
	}
	return out
}

// label is an update that sets a label.
func label(value string) storage.UpdateFunc {
	return storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		obj.(*example.Pod).Labels = map[string]string{"label": value}
		return obj, nil
	})
}

func putOp(key, value string) raftstore.Op {
	return raftstore.Op{Type: raftstore.OpPut, Key: key, Value: []byte(value)}
}

// writes are the three writes of the interface on one pod, which the second
// and third find existing.
func writes(s *store, p *example.Pod) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"create": func(ctx context.Context) error {
			return s.Create(ctx, podKey(p)+"-new", pod(p.Namespace, p.Name+"-new"), nil, 0)
		},
		"update": func(ctx context.Context) error {
			return s.GuaranteedUpdate(ctx, podKey(p), &example.Pod{}, false, nil, label("x"), nil)
		},
		"delete": func(ctx context.Context) error {
			return s.Delete(ctx, podKey(p), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
		},
	}
}

func TestWriteUnderEndedLeadershipIsRefused(t *testing.T) {
	for _, name := range []string{"create", "update", "delete"} {
		t.Run(name, func(t *testing.T) {
			ctx, s, kv := setUp(t)
			p := create(t, s, pod("ns", "a"))
			r, err := kv.Txn(ctx, raftstore.Txn{Success: []raftstore.Op{putOp("/leader/x", "me")}})
			if err != nil {
				t.Fatal(err)
			}
			held := WithFence(ctx, raftstore.CreateRevisionIs("/leader/x", r.Revision))
			ended := WithFence(ctx, raftstore.CreateRevisionIs("/leader/x", r.Revision-1))
			before := kv.View().Revision()
			err = writes(s, p)[name](ended)
			if !errors.Is(err, ErrFenced) || !apierrors.IsConflict(err) {
				t.Fatalf("error %v, want ErrFenced that is a conflict", err)
			}
			if !strings.Contains(err.Error(), "/leader/x") || !strings.Contains(err.Error(), fmt.Sprint(r.Revision-1)) {
				t.Errorf("error does not name leadership and epoch: %v", err)
			}
			if kv.View().Revision() != before {
				t.Error("a fenced write was written")
			}
			if err := writes(s, p)[name](held); err != nil {
				t.Errorf("under a leadership that is held: %v", err)
			}
		})
	}
}

func TestExtrasAreWrittenWithTheObjectOrNotAtAll(t *testing.T) {
	for _, name := range []string{"create", "update", "delete"} {
		t.Run(name, func(t *testing.T) {
			ctx, s, kv := setUp(t)
			p := create(t, s, pod("ns", "a"))
			if _, err := kv.Txn(ctx, raftstore.Txn{Success: []raftstore.Op{putOp("/ip/1", "taken")}}); err != nil {
				t.Fatal(err)
			}
			extras := &Extras{
				Compares: []raftstore.Compare{raftstore.ModRevisionIs("/ip/2", 0), raftstore.ModRevisionIs("/ip/1", 0)},
				Ops:      []raftstore.Op{putOp("/ip/1", "mine")},
			}
			ctx = WithExtras(ctx, extras)
			before := kv.View().Revision()
			err := writes(s, p)[name](ctx)
			var failed *ExtraCompareError
			if !errors.As(err, &failed) || !errors.Is(err, ErrExtraCompare) || !apierrors.IsConflict(err) {
				t.Fatalf("error %v, want ExtraCompareError that is a conflict", err)
			}
			if failed.Index != 1 || failed.Compare.Key != "/ip/1" || string(failed.Current[0].Value) != "taken" {
				t.Errorf("error names compare %d on %q", failed.Index, failed.Compare.Key)
			}
			if kv.View().Revision() != before {
				t.Error("a refused write was written")
			}
			extras.Compares = []raftstore.Compare{raftstore.ModRevisionIs("/ip/3", 0)}
			extras.Ops = []raftstore.Op{putOp("/ip/3", "mine")}
			if err := writes(s, p)[name](ctx); err != nil {
				t.Fatal(err)
			}
			if kv.View().Get("/ip/3") == nil || kv.View().Revision() != before+1 {
				t.Error("extras are not in the write's transaction")
			}
			if !extras.empty() {
				t.Error("extras would be used twice")
			}
		})
	}
}

func TestUpdateThatChangesNothingStillDoesExtras(t *testing.T) {
	ctx, s, kv := setUp(t)
	p := create(t, s, pod("ns", "a"))
	same := storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) { return obj, nil })
	extras := &Extras{Ops: []raftstore.Op{putOp("/ip/1", "mine")}}
	out := &example.Pod{}
	if err := s.GuaranteedUpdate(WithExtras(ctx, extras), podKey(p), out, false, nil, same, nil); err != nil {
		t.Fatal(err)
	}
	if out.ResourceVersion != p.ResourceVersion {
		t.Errorf("resourceVersion went from %s to %s", p.ResourceVersion, out.ResourceVersion)
	}
	if kv.View().Get("/ip/1") == nil {
		t.Error("extras were not done")
	}
}

func TestUpdateLooksAtExtrasOfEachAttempt(t *testing.T) {
	ctx, s, kv := setUp(t)
	p := create(t, s, pod("ns", "a"))
	extras := &Extras{}
	attempts := 0
	update := func(obj runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		attempts++
		if attempts == 1 { // somebody else is faster
			if err := s.GuaranteedUpdate(context.Background(), podKey(p), &example.Pod{}, false, nil, label("other"), nil); err != nil {
				t.Fatal(err)
			}
		}
		extras.Ops = []raftstore.Op{putOp(fmt.Sprintf("/attempt/%d", attempts), "")}
		obj.(*example.Pod).Spec.NodeName = "n"
		return obj, nil, nil
	}
	out := &example.Pod{}
	if err := s.GuaranteedUpdate(WithExtras(ctx, extras), podKey(p), out, false, nil, update, nil); err != nil {
		t.Fatal(err)
	}
	if attempts != 2 || out.Labels["label"] != "other" {
		t.Errorf("%d attempts, labels %v; want 2 and the other's label kept", attempts, out.Labels)
	}
	if kv.View().Get("/attempt/1") != nil || kv.View().Get("/attempt/2") == nil {
		t.Error("extras are not those of the attempt that succeeded")
	}
}

func TestStoreErrorsAsTheAPIShowsThem(t *testing.T) {
	resource := schema.GroupResource{Resource: "pods"}
	for _, c := range []struct {
		err  error
		code int32
	}{
		{raftstore.ErrNoLeader, http.StatusServiceUnavailable},
		{raftstore.ErrClosed, http.StatusServiceUnavailable},
		{raftstore.ErrTooLarge, http.StatusRequestEntityTooLarge},
		{raftstore.ErrDiskFull, http.StatusInsufficientStorage},
		{raftstore.ErrCompacted, http.StatusGone},
		{raftstore.ErrOverrun, http.StatusGone},
		{context.DeadlineExceeded, http.StatusGatewayTimeout},
	} {
		wrapped := fmt.Errorf("put: %w", c.err)
		got := storeerrors.InterpretUpdateError(storeError(wrapped), resource, "a")
		var s apierrors.APIStatus
		if !errors.As(got, &s) || s.Status().Code != c.code {
			t.Errorf("%v is shown as %v, want code %d", c.err, got, c.code)
		}
		if gone := c.code == http.StatusGone; !gone && !errors.Is(got, c.err) {
			t.Errorf("%v: the store's error is lost", c.err)
		}
	}
}

func TestHoldsAgreesWithTheStore(t *testing.T) {
	ctx, _, kv := setUp(t)
	for _, k := range []string{"k/1", "k/2", "k/2", "k/3"} {
		if _, err := kv.Txn(ctx, raftstore.Txn{Success: []raftstore.Op{putOp(k, k)}}); err != nil {
			t.Fatal(err)
		}
	}
	rev := kv.View().Revision()
	for _, at := range [][2]string{{"k/1", ""}, {"k/2", ""}, {"none", ""}, {"k/", "k0"}, {"n", "o"}} {
		for target := raftstore.CompareValue; target <= raftstore.CompareLease; target++ {
			for result := raftstore.Equal; result <= raftstore.Greater; result++ {
				for _, n := range []int64{0, 1, 2, rev - 1, rev} {
					c := raftstore.Compare{Key: at[0], RangeEnd: at[1], Target: target, Result: result, Int: n, Value: []byte("k/2")}
					r, err := kv.Txn(ctx, raftstore.Txn{
						Compares: []raftstore.Compare{c},
						Failure:  []raftstore.Op{{Type: raftstore.OpRange, Key: at[0], RangeEnd: at[1]}},
						Success:  []raftstore.Op{{Type: raftstore.OpRange, Key: at[0], RangeEnd: at[1]}},
					})
					if err != nil {
						t.Fatal(err)
					}
					if got := holds(c, r.Results[0].KVs); got != r.Succeeded {
						t.Errorf("%+v: %v, the store says %v", c, got, r.Succeeded)
					}
				}
			}
		}
	}
}

// grants counts leases.
type grants struct {
	n   int
	ttl time.Duration
}

func (g *grants) LeaseGrant(_ context.Context, _ raftstore.LeaseID, ttl time.Duration) (raftstore.LeaseID, error) {
	g.n++
	g.ttl = ttl
	return raftstore.LeaseID(g.n), nil
}

func TestObjectsWrittenTogetherShareALease(t *testing.T) {
	g := &grants{}
	now := time.Unix(1000, 0)
	l := newLeases(g)
	l.now = func() time.Time { return now }
	next := func(ttl time.Duration) raftstore.LeaseID {
		id, err := l.lease(context.Background(), ttl)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	if next(time.Hour) != 1 || g.ttl != time.Hour+time.Minute {
		t.Fatalf("first lease is for %v", g.ttl)
	}
	now = now.Add(59 * time.Second)
	if next(time.Hour) != 1 {
		t.Error("not shared within the minute")
	}
	now = now.Add(2 * time.Second)
	if next(time.Hour) != 2 {
		t.Error("shared although the object would go too early")
	}
	if next(10*time.Minute) != 3 {
		t.Error("shared although the object would live too long")
	}
	for range leaseObjects - 1 {
		next(10 * time.Minute)
	}
	if next(10*time.Minute) != 4 {
		t.Error("one lease for too many objects")
	}
	l.forget(4)
	if next(10*time.Minute) != 5 {
		t.Error("a forgotten lease is used")
	}
}

func TestRevokedSharedLeaseIsReplaced(t *testing.T) {
	ctx, s, kv := setUp(t)
	out := &example.Pod{}
	if err := s.Create(ctx, "/pods/ns/a", pod("ns", "a"), out, 3600); err != nil {
		t.Fatal(err)
	}
	if err := kv.LeaseRevoke(ctx, s.leases.current); err != nil {
		t.Fatal(err)
	}
	if err := s.Create(ctx, "/pods/ns/b", pod("ns", "b"), out, 3600); err != nil {
		t.Fatalf("after the shared lease went: %v", err)
	}
}
