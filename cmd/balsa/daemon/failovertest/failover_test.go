package failovertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/leader"
	"github.com/balsahq/balsa/leader/apiservers"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/simnet"
)

// server is one control plane.
type server struct {
	id    string
	addr  netip.AddrPort
	node  *simnet.Node
	store *raftstore.Store
	api   *control.Server
	admin kubernetes.Interface
	ends  []func() // the parts, the last started first
}

// cluster is three of them. live is what gossip would say.
type cluster struct {
	t       *testing.T
	net     *simnet.Network
	servers []*server

	mu      sync.Mutex
	dead    map[string]bool
	changed chan struct{}
	won     map[int64]time.Time // when each term was won, by epoch
	holder  string
	epoch   int64
	spent   time.Duration // of CPU by this process when the newest term was won
}

// spent is the CPU time of this process: on a machine that is busy with other things it says more than the clock.
func spent() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	authority, err := pki.Open(pki.Config{Dir: t.TempDir(), IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, ServiceIP: net.IPv4(10, 96, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, net: simnet.New(simnet.Config{Seed: 1}), dead: map[string]bool{}, changed: make(chan struct{}), won: map[int64]time.Time{}}
	t.Cleanup(func() {
		for _, s := range c.servers {
			c.end(s)
		}
		c.net.Close()
	})
	for i := range 3 {
		s := c.start(authority, i)
		c.tell(func() { c.servers = append(c.servers, s) })
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	for _, s := range c.servers[1:] {
		eventually(t, patience, "joined", func() bool { // a busy machine may lose its leader meanwhile
			for _, l := range c.servers {
				if l.store.Leading() && errors.Join(l.store.AddLearner(ctx, s.id), l.store.Promote(ctx, s.id)) == nil {
					return true
				}
			}
			return false
		})
	}
	for _, s := range c.servers {
		select {
		case <-s.api.Ready():
		case <-ctx.Done():
			t.Fatal("not ready")
		}
	}
	return c
}

func (c *cluster) start(authority *pki.Authority, i int) *server {
	c.t.Helper()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	s := &server{id: fmt.Sprintf("%032x", i+1), addr: netip.MustParseAddrPort(fmt.Sprintf("192.0.2.%d:6443", i+1))}
	s.node = c.net.Join(s.id)
	var err error
	s.store, err = raftstore.Open(raftstore.Config{
		InMemory: true, ServerID: s.id, ClusterID: fmt.Sprintf("%032x", 7), Join: i > 0, Transport: s.node.Transport(), Peers: s.node.Peers(),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	s.node.Serve(s.store)
	s.run(c.t, s.store.Run)
	s.api, err = control.New(control.Config{Store: s.store, PKI: authority, AdvertiseAddress: s.addr.Addr(), Logger: log})
	if err != nil {
		c.t.Fatal(err)
	}
	s.run(c.t, s.api.Run)
	if s.admin, err = kubernetes.NewForConfig(s.api.Client(control.Identity{User: "admin", Groups: []string{"system:masters"}})); err != nil {
		c.t.Fatal(err)
	}
	cfg := leader.Config{
		Elector: elector{c, s}, Identity: s.id, Logger: log,
		APIServers: apiservers.Source{List: c.live, Changed: c.next},
	}
	s.run(c.t, func(ctx context.Context) error { return leader.Run(ctx, cfg) })
	return s
}

func (s *server) run(t *testing.T, part func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	s.ends = append([]func(){func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}}, s.ends...)
}

func (c *cluster) end(s *server) {
	for _, end := range s.ends {
		end()
	}
	s.ends = nil
}

// elector is daemon/server's, with a note of when a term was won.
type elector struct {
	c *cluster
	s *server
}

func (e elector) Campaign(ctx context.Context) (leader.Term, error) {
	won, err := e.s.store.Campaign(ctx, "controllers", e.s.id, 5*time.Second)
	if err != nil {
		return leader.Term{}, err
	}
	e.c.mu.Lock()
	e.c.spent = spent()
	e.c.won[won.Epoch()], e.c.holder, e.c.epoch = time.Now(), e.s.id, won.Epoch()
	e.c.mu.Unlock()
	fence := won.Fence()
	return leader.Term{Epoch: won.Epoch(), Lost: won.Lost(), Resign: won.Resign, Config: func(user string) *rest.Config {
		id := control.Identity{User: user, Fence: &fence}
		if rest, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
			namespace, _, _ := strings.Cut(rest, ":")
			id.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
		}
		return e.s.api.Client(id)
	}}, nil
}

func (c *cluster) live() (out []netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.servers {
		if !c.dead[s.id] {
			out = append(out, s.addr)
		}
	}
	return out
}

func (c *cluster) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// kill is kill -9 of the server that leads; it returns a survivor.
func (c *cluster) kill() (dead, survivor *server) {
	c.mu.Lock()
	holder := c.holder
	c.mu.Unlock()
	for _, s := range c.servers {
		if s.id == holder {
			dead = s
		} else {
			survivor = s
		}
	}
	dead.node.Kill()
	for _, s := range c.servers {
		if s != dead {
			s.store.PeerEnded(dead.id) // its port is refused
		}
	}
	return dead, survivor
}

// gossip says that a server is gone.
func (c *cluster) gossip(dead *server) { c.tell(func() { c.dead[dead.id] = true }) }

// tell changes who is alive.
func (c *cluster) tell(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *cluster) term() (epoch int64, won time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch, c.won[c.epoch]
}

// patience is for a machine that does other work too: how long things took is told, and decides nothing.
const patience = time.Minute

func eventually(t *testing.T, within time.Duration, what string, cond func() bool) time.Time {
	t.Helper()
	for deadline := time.Now().Add(within); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("not %s after %v", what, within)
		}
		<-time.After(2 * time.Millisecond)
	}
	return time.Now()
}

// fill makes the objects of a cluster that is in use: a node, and a thousand others.
func fill(t *testing.T, ctx context.Context, admin kubernetes.Interface) {
	t.Helper()
	if _, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error { return healthy(ctx, admin) })
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "with a service account", func() bool {
		_, err := admin.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	crowd(t, ctx, admin)
}

// healthy reports the node as its agent would.
func healthy(ctx context.Context, admin kubernetes.Interface) error {
	node, err := admin.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
	if err != nil {
		return err
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
	node.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("5000")}
	node.Status.Capacity = node.Status.Allocatable
	_, err = admin.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// crowd makes a thousand objects and waits until the pods among them are placed.
func crowd(t *testing.T, ctx context.Context, admin kubernetes.Interface) {
	t.Helper()
	made := func(err error) error { // one whose answer was lost is made again, and is there already
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	var g errgroup.Group
	g.SetLimit(64)
	for i := range 500 {
		g.Go(func() error {
			_, err := admin.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%d", i)}}, metav1.CreateOptions{})
			return made(err)
		})
		g.Go(func() error {
			_, err := admin.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i)}, Spec: template().Spec,
			}, metav1.CreateOptions{})
			return made(err)
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*patience, "placed", func() bool {
		pods, err := admin.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=", ResourceVersion: "0"})
		return err == nil && len(pods.Items) == 0
	})
}

func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

func deployment(name string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: template()},
	}
}

// awaitBound returns when a pod of the deployment has a node. It watches: a test that asks again and again would take the
// CPU from what it measures.
func awaitBound(t *testing.T, ctx context.Context, admin kubernetes.Interface) time.Time {
	t.Helper()
	w, err := admin.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{LabelSelector: "app=web", ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && p.Spec.NodeName != "" {
			return time.Now()
		}
	}
	t.Fatal("not scheduled")
	return time.Time{}
}

// TestControllersAndSchedulerActSoonAfterTheLeaderDied also shows that the dead server leaves the kubernetes Service.
func TestControllersAndSchedulerActSoonAfterTheLeaderDied(t *testing.T) {
	c := newCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*patience)
	defer cancel()
	fill(t, ctx, c.servers[0].admin)
	slice := func(admin kubernetes.Interface) int {
		s, err := admin.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{ResourceVersion: "0"})
		if err != nil {
			return 0
		}
		return len(s.Endpoints)
	}
	eventually(t, patience, "served by three", func() bool { return slice(c.servers[0].admin) == 3 })
	first, _ := c.term()
	dead, admin := c.kill()
	killed := time.Now()
	eventually(t, patience, "writable", func() bool {
		_, err := admin.admin.AppsV1().Deployments("default").Create(ctx, deployment("web"), metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err)
	})
	written := time.Now()
	c.gossip(dead)
	told := time.Now()
	var acted, placed time.Time
	eventually(t, patience, "acted on by the controllers", func() bool {
		sets, err := admin.admin.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		return err == nil && len(sets.Items) > 0
	})
	acted = time.Now()
	placed = awaitBound(t, ctx, admin.admin)
	cpu := spent()
	left := eventually(t, patience, "served by two", func() bool { return slice(admin.admin) == 2 })
	epoch, won := c.term()
	if epoch <= first {
		t.Fatal("no new term")
	}
	t.Logf("killed → written %v, won %v; won → controllers %v, scheduler %v; gossip → kubernetes Service %v; killed → scheduler %v; CPU from won to scheduled %v",
		written.Sub(killed), won.Sub(killed), acted.Sub(won), placed.Sub(won), left.Sub(told), placed.Sub(killed), cpu-c.spent)
}
