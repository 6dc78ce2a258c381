package storage

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/balsahq/balsa/raftstore"
)

// follower is the store of a server that has not applied all of the log: what the embedded one holds is applied here,
// what ahead holds is committed. Equal transactions give equal states, so replaying one after the other is replication.
type follower struct {
	*raftstore.Store
	ahead *raftstore.Store

	mu      sync.Mutex
	pending []raftstore.Txn
	alone   bool // no quorum
}

// elsewhere is a write that another server took.
func (f *follower) elsewhere(ctx context.Context, t raftstore.Txn) (*raftstore.TxnResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = append(f.pending, t)
	return f.ahead.Txn(ctx, t)
}

func (f *follower) catchUp(ctx context.Context) (last *raftstore.TxnResult, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ; len(f.pending) > 0; f.pending = f.pending[1:] {
		if last, err = f.Store.Txn(ctx, f.pending[0]); err != nil {
			return nil, err
		}
	}
	return last, nil
}

func (f *follower) Txn(ctx context.Context, t raftstore.Txn) (*raftstore.TxnResult, error) {
	if _, err := f.elsewhere(ctx, t); err != nil {
		return nil, err
	}
	return f.catchUp(ctx)
}

func (f *follower) Barrier(ctx context.Context) (*raftstore.View, error) {
	f.mu.Lock()
	alone := f.alone
	f.mu.Unlock()
	if alone {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if _, err := f.catchUp(ctx); err != nil {
		return nil, err
	}
	return f.View(), nil
}

// elsewhereBackend is what another server's storage writes through.
type elsewhereBackend struct {
	*raftstore.Store
	f *follower
}

func (b elsewhereBackend) Txn(ctx context.Context, t raftstore.Txn) (*raftstore.TxnResult, error) {
	return b.f.elsewhere(ctx, t)
}

// lagging is the storage of a server that lags behind another, whose storage it returns too.
func lagging(t *testing.T) (ctx context.Context, here, other *store, f *follower) {
	ctx, here, behind := setUp(t)
	_, other, ahead := setUp(t)
	f = &follower{Store: behind, ahead: ahead}
	here.kv, here.leases = f, newLeases(f)
	other.kv = elsewhereBackend{ahead, f}
	return ctx, here, other, f
}

func TestAServerThatLagsAnswersAsIfItDidNot(t *testing.T) {
	get := func(ctx context.Context, s *store, p *example.Pod, version string) (*example.Pod, error) {
		out := &example.Pod{}
		return out, s.Get(ctx, podKey(p), storage.GetOptions{ResourceVersion: version}, out)
	}
	for name, check := range map[string]func(t *testing.T, ctx context.Context, here *store, p, changed *example.Pod){
		"a consistent get": func(t *testing.T, ctx context.Context, here *store, p, changed *example.Pod) {
			if got, err := get(ctx, here, p, ""); err != nil || got.ResourceVersion != changed.ResourceVersion {
				t.Fatal(got.ResourceVersion, err)
			}
		},
		"a get of a version read elsewhere": func(t *testing.T, ctx context.Context, here *store, p, changed *example.Pod) {
			if got, err := get(ctx, here, p, changed.ResourceVersion); err != nil || got.ResourceVersion != changed.ResourceVersion {
				t.Fatal(got.ResourceVersion, err)
			}
		},
		"a stale get is what is here": func(t *testing.T, ctx context.Context, here *store, p, _ *example.Pod) {
			if _, err := get(ctx, here, p, "0"); !storage.IsNotFound(err) {
				t.Fatal("read ahead of what is applied", err)
			}
		},
		"a version nobody wrote": func(t *testing.T, ctx context.Context, here *store, p, changed *example.Pod) {
			rev, _ := strconv.Atoi(changed.ResourceVersion)
			if _, err := get(ctx, here, p, strconv.Itoa(rev+1)); !storage.IsTooLargeResourceVersion(err) {
				t.Fatal(err)
			}
		},
		"a consistent list": func(t *testing.T, ctx context.Context, here *store, _, _ *example.Pod) {
			list := &example.PodList{}
			if err := here.GetList(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil || len(list.Items) != 1 {
				t.Fatal(len(list.Items), err)
			}
		},
		"a list at exactly a version read elsewhere": func(t *testing.T, ctx context.Context, here *store, p, _ *example.Pod) {
			list := &example.PodList{}
			opts := storage.ListOptions{Recursive: true, Predicate: storage.Everything, ResourceVersion: p.ResourceVersion, ResourceVersionMatch: "Exact"}
			if err := here.GetList(ctx, "/pods/", opts, list); err != nil || len(list.Items) != 1 || list.Items[0].Labels != nil {
				t.Fatal(list.Items, err)
			}
		},
		"an update": func(t *testing.T, ctx context.Context, here *store, p, _ *example.Pod) {
			out := &example.Pod{}
			if err := here.GuaranteedUpdate(ctx, podKey(p), out, false, nil, label("here"), nil); err != nil || out.Labels["label"] != "here" {
				t.Fatal(out, err)
			}
		},
		"a create of what exists": func(t *testing.T, ctx context.Context, here *store, p, _ *example.Pod) {
			if err := here.Create(ctx, podKey(p), pod(p.Namespace, p.Name), nil, 0); !storage.IsExist(err) {
				t.Fatal(err)
			}
		},
		"a delete with a condition": func(t *testing.T, ctx context.Context, here *store, p, changed *example.Pod) {
			if err := here.Delete(ctx, podKey(p), &example.Pod{}, &storage.Preconditions{ResourceVersion: &changed.ResourceVersion}, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		"a watch from a version read elsewhere": func(t *testing.T, ctx context.Context, here *store, p, _ *example.Pod) {
			w, err := here.Watch(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything, ResourceVersion: p.ResourceVersion})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			if _, err := here.barrier(ctx); err != nil {
				t.Fatal(err)
			}
			e := <-w.ResultChan()
			if e.Type != watch.Modified {
				t.Fatalf("%+v", e)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, here, other, _ := lagging(t)
			p := create(t, other, pod("ns", "a"))
			changed := &example.Pod{}
			if err := other.GuaranteedUpdate(ctx, podKey(p), changed, false, nil, label("there"), nil); err != nil {
				t.Fatal(err)
			}
			check(t, ctx, here, p, changed)
		})
	}
}

func TestWithoutAQuorumOnlyStaleReadsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, here, other, f := lagging(t)
		defer f.Close()
		defer f.ahead.Close()
		p := create(t, other, pod("ns", "a"))
		if _, err := f.catchUp(ctx); err != nil {
			t.Fatal(err)
		}
		later := create(t, other, pod("ns", "b"))
		f.alone = true
		get := func(p *example.Pod, version string) error {
			return here.Get(ctx, podKey(p), storage.GetOptions{ResourceVersion: version}, &example.Pod{})
		}
		for _, version := range []string{"0", p.ResourceVersion} {
			if err := get(p, version); err != nil {
				t.Errorf("version %s: %v", version, err)
			}
		}
		start := time.Now()
		err := get(p, "")
		var status apierrors.APIStatus
		if !errors.As(err, &status) || status.Status().Code != http.StatusServiceUnavailable || !errors.Is(err, raftstore.ErrNoLeader) {
			t.Errorf("consistent read: %v", err)
		}
		if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds < 1 {
			t.Errorf("the client is not told when to come back: %v", err)
		}
		if took := time.Since(start); took > 4*time.Second {
			t.Errorf("took %v", took)
		}
		start = time.Now()
		err = get(later, later.ResourceVersion)
		if seconds, ok := apierrors.SuggestsClientDelay(err); !storage.IsTooLargeResourceVersion(err) || !ok || seconds != 1 {
			t.Errorf("a version from elsewhere: %v", err)
		}
		if took := time.Since(start); took != futureRevisionTimeout {
			t.Errorf("took %v", took)
		}
		// What arrives meanwhile is noticed at once, without asking anybody.
		done := make(chan error, 1)
		go func() { done <- get(later, later.ResourceVersion) }()
		synctest.Wait()
		start = time.Now()
		if _, err := f.catchUp(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil || time.Since(start) > 0 {
			t.Error(err, time.Since(start))
		}
	})
}
