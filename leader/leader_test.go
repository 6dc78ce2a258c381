package leader

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"
)

// offline is an API that never answers.
type offline struct{}

func (offline) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// candidate hands out terms one after the other and counts how many are open.
type candidate struct {
	terms  chan Term
	epochs atomic.Int64
	open   atomic.Int64
	most   atomic.Int64
	fail   atomic.Bool
}

func (c *candidate) Campaign(ctx context.Context) (Term, error) {
	if c.fail.Swap(false) {
		return Term{}, errors.New("no quorum")
	}
	select {
	case t := <-c.terms:
		t.Epoch = c.epochs.Add(1)
		c.most.Store(max(c.most.Load(), c.open.Add(1)))
		t.Resign = func(context.Context) error { c.open.Add(-1); return nil }
		t.Config = func(string) *rest.Config { return &rest.Config{Host: "http://nowhere", Transport: offline{}} }
		return t, nil
	case <-ctx.Done():
		return Term{}, ctx.Err()
	}
}

func TestATermEndsWhollyBeforeTheNextBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &candidate{terms: make(chan Term)}
		c.fail.Store(true) // the first campaign fails and is tried again
		started := make(chan int64, 10)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, Config{
				Elector: c, Identity: "me", Logger: slog.New(slog.DiscardHandler),
				ClusterCIDR: netip.MustParsePrefix("10.244.0.0/16"), OnTermStarted: func(e int64) { started <- e },
			})
		}()
		for want := int64(1); want <= 3; want++ {
			lost := make(chan struct{})
			c.terms <- Term{Lost: lost}
			if e := <-started; e != want {
				t.Fatalf("epoch %d, want %d", e, want)
			}
			time.Sleep(time.Minute)
			close(lost)
			synctest.Wait()
			if n := c.open.Load(); n != 0 {
				t.Fatalf("%d terms open after the loss", n)
			}
		}
		c.terms <- Term{Lost: make(chan struct{})}
		<-started
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if c.open.Load() != 0 || c.most.Load() != 1 {
			t.Fatalf("open %d, most at once %d", c.open.Load(), c.most.Load())
		}
	}) // the bubble fails if a goroutine is left
}

func TestConfigReportsEveryFaultAtOnce(t *testing.T) {
	c := Config{NodeGrace: -1, ClusterCIDR: netip.MustParsePrefix("10.0.0.0/24"), NodeCIDRBits: 8}
	err := c.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	if n := len(err.(interface{ Unwrap() error }).Unwrap().(interface{ Unwrap() []error }).Unwrap()); n != 4 {
		t.Fatalf("%d faults in %v, want 4", n, err)
	}
}

// Two rows that write the same would fight, and the cluster would write for ever.
func TestEveryPartHasOneWriter(t *testing.T) {
	names, writers := map[string]bool{}, map[part]string{}
	for _, r := range controllers {
		if names[r.name] {
			t.Errorf("two rows are named %s", r.name)
		}
		names[r.name] = true
		if r.workers < 1 || r.build == nil || len(r.watches) == 0 || len(r.writes) == 0 {
			t.Errorf("%s: the row is incomplete", r.name)
		}
		for _, p := range r.writes {
			for q, other := range writers {
				if q.kind == p.kind && (q.which == p.which || q.which == "" || p.which == "") {
					t.Errorf("%s and %s both write %v", r.name, other, p)
				}
			}
			writers[p] = r.name
		}
	}
}

func TestLeaseShowsTheHolder(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l := leaseOf("kube-scheduler", "a", nil, true, start)
	again := leaseOf("kube-scheduler", "a", l, false, start.Add(time.Hour))
	other := leaseOf("kube-scheduler", "b", again, true, start.Add(2*time.Hour))
	for _, c := range []struct {
		lease       *coordinationv1.Lease
		holder      string
		acquired    time.Time
		renewed     time.Time
		transitions int32
	}{
		{l, "a", start, start, 0},
		{again, "a", start, start.Add(time.Hour), 0},
		{other, "b", start.Add(2 * time.Hour), start.Add(2 * time.Hour), 1},
	} {
		s := c.lease.Spec
		if *s.HolderIdentity != c.holder || !s.AcquireTime.Time.Equal(c.acquired) || !s.RenewTime.Time.Equal(c.renewed) || *s.LeaseTransitions != c.transitions {
			t.Errorf("%+v, want %+v", s, c)
		}
		record, err := recordOf(c.lease)
		if want := `"holderIdentity":"` + c.holder + `"`; err != nil || !strings.Contains(record, want) || !strings.Contains(record, `"renewTime":"`+c.renewed.Format(time.RFC3339)) {
			t.Errorf("the record is %s (%v), want %s and the time %s in it", record, err, want, c.renewed)
		}
	}
}
