package control_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/simnet"
)

// trio is three peers in this process, joined in memory. The first leads, as long as the machine has time for it.
type trio struct {
	net    *simnet.Network
	ids    []string
	stores []*raftstore.Store
}

func newTrio(t testing.TB) *trio {
	t.Helper()
	c := &trio{net: simnet.New(simnet.Config{Seed: 1, Timeout: 200 * time.Millisecond})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 3)
	for i := range 3 {
		id := fmt.Sprintf("%032x", i+1)
		node := c.net.Join(id)
		s, err := raftstore.Open(raftstore.Config{
			InMemory: true, ServerID: id, ClusterID: fmt.Sprintf("%032x", 7), Join: i > 0, Transport: node.Transport(), Peers: node.Peers(),
		})
		if err != nil {
			t.Fatal(err)
		}
		node.Serve(s)
		go func() { done <- s.Run(ctx) }()
		c.ids, c.stores = append(c.ids, id), append(c.stores, s)
	}
	t.Cleanup(func() {
		cancel()
		for range c.stores {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		c.net.Close()
	})
	joining, ready := context.WithTimeout(t.Context(), 2*time.Minute)
	defer ready()
	for _, id := range c.ids[1:] {
		eventually(t, time.Minute, "joined", func() bool { // on a busy machine another may lead by now
			return slices.ContainsFunc(c.stores, func(s *raftstore.Store) bool {
				return s.Leading() && errors.Join(s.AddLearner(joining, id), s.Promote(joining, id)) == nil
			})
		})
	}
	return c
}

// delay makes what the leader tells a follower late.
func (c *trio) delay(follower int, d time.Duration) {
	c.net.SetLink(c.ids[0], c.ids[follower], simnet.Link{MinDelay: d, MaxDelay: d})
}

// cut takes a peer off the network, or puts it back.
func (c *trio) cut(i int, off bool) {
	for j, other := range c.ids {
		if i != j {
			c.net.SetLink(c.ids[i], other, simnet.Link{Cut: off})
			c.net.SetLink(other, c.ids[i], simnet.Link{Cut: off})
		}
	}
}

func TestServersOverThreePeersGiveNothingTwice(t *testing.T) {
	c := newTrio(t)
	giveNothingTwice(t, several(t, c.stores...))
}

func TestWhatOneServerAcknowledgedALaggingOneKnows(t *testing.T) {
	c := newTrio(t)
	servers := several(t, c.stores...)
	c.delay(1, 30*time.Millisecond)
	for _, pair := range [][2]int{{0, 1}, {2, 1}, {1, 2}} {
		t.Run(fmt.Sprintf("%d then %d", pair[0], pair[1]), func(t *testing.T) {
			whatOneWritesTheNextKnows(t, pair[0]*100+pair[1]*10, servers[pair[0]], servers[pair[1]])
		})
	}
}

// health asks a server how it is.
func health(ctx context.Context, r *running, path string) int {
	client, err := kubernetes.NewForConfig(r.Client(masters))
	if err != nil {
		return 0
	}
	code := 0
	client.Discovery().RESTClient().Get().AbsPath(path).Do(ctx).StatusCode(&code)
	return code
}

func eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("not %s after %v", what, within)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func TestAServerWithoutAQuorumIsAliveAndReadsOnRequest(t *testing.T) {
	c := newTrio(t)
	servers := several(t, c.stores...)
	ctx, alone := testContext(t), servers[2]
	namespaces := clientset(t, alone.Client(masters)).CoreV1().Namespaces()
	c.cut(2, true)
	eventually(t, time.Minute, "unready", func() bool { return health(ctx, alone, "/readyz") != http.StatusOK })
	if code := health(ctx, alone, "/livez"); code != http.StatusOK {
		t.Errorf("livez answers %d", code)
	}
	if _, err := namespaces.Get(ctx, "default", metav1.GetOptions{ResourceVersion: "0"}); err != nil {
		t.Errorf("a stale get: %v", err)
	}
	if list, err := namespaces.List(ctx, metav1.ListOptions{ResourceVersion: "0"}); err != nil || len(list.Items) != 4 {
		t.Errorf("a stale list: %v", err)
	}
	start := time.Now()
	code, wait := refusal(ctx, alone)
	if took := time.Since(start); code != http.StatusServiceUnavailable || wait == "" || took > 20*time.Second {
		t.Errorf("a consistent get: %d, Retry-After %q, after %v", code, wait, took)
	}
	if _, err := clientset(t, servers[1].Client(masters)).CoreV1().ConfigMaps("default").Create(ctx, configMap("a", nil), metav1.CreateOptions{}); err != nil {
		t.Errorf("the others stopped too: %v", err)
	}
	c.cut(2, false)
	eventually(t, time.Minute, "ready again", func() bool { return health(ctx, alone, "/readyz") == http.StatusOK })
	if _, err := clientset(t, alone.Client(masters)).CoreV1().ConfigMaps("default").Get(ctx, "a", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// refusal is the first answer to a consistent read, which a client would repeat.
func refusal(ctx context.Context, r *running) (code int, retryAfter string) {
	req, err := http.NewRequestWithContext(ctx, "GET", "http://in-process/api/v1/namespaces/default", nil)
	if err != nil {
		return 0, err.Error()
	}
	res, err := r.Client(masters).Transport.RoundTrip(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	return res.StatusCode, res.Header.Get("Retry-After")
}

func TestAServerStartsBeforeThereIsAQuorum(t *testing.T) {
	c := newTrio(t)
	c.cut(2, true)
	servers, ctx := assembled(t, c.stores[2]), testContext(t)
	eventually(t, time.Minute, "without a leader", func() bool { return errors.Is(c.stores[2].Err(), raftstore.ErrNoLeader) })
	if code := health(ctx, servers[0], "/livez"); code != http.StatusOK {
		t.Errorf("livez answers %d", code)
	}
	select {
	case <-servers[0].Ready():
		t.Fatal("ready without a quorum")
	case <-time.After(200 * time.Millisecond):
	}
	c.cut(2, false)
	select {
	case <-servers[0].Ready():
	case <-ctx.Done():
		t.Fatal("not ready with a quorum")
	}
	_, err := clientset(t, servers[0].Client(masters)).CoreV1().Namespaces().Get(ctx, "none", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}
