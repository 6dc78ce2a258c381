package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/balsahq/balsa/e2e/host"
	"github.com/balsahq/balsa/e2e/lan"
)

// several is a cluster of a few servers, which take no pods, and a few agents, each on its own machine.
type several struct {
	t       *testing.T
	net     *lan.Network
	servers []*cluster
	agents  []*cluster
	spare   []*lan.Machine // on the same switch, without programs
}

// newSeveral makes the machines. No program runs on them yet.
func newSeveral(t *testing.T, servers, agents, spare int) *several {
	t.Helper()
	n, err := lan.New(lan.Config{Machines: servers + agents + spare})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	s := &several{t: t, net: n, spare: n.Machines[servers+agents:]}
	for i, m := range n.Machines[:servers+agents] {
		if i < servers {
			s.servers = append(s.servers, newHostOn(t, m, "--disable-agent", "--tls-san="+apiName))
		} else {
			s.agents = append(s.agents, newHostOn(t, m))
		}
	}
	return s
}

// newHostOn makes a host with empty directories on a machine, until the test ends.
func newHostOn(t *testing.T, m *lan.Machine, flags ...string) *cluster {
	t.Helper()
	h, err := host.New(host.Config{Balsa: binary, Machine: m, Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Host: h, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s:\n%s", c.NodeName(), tail(without(c.Log(), "level=WARN msg=\"raft: failed to"), 40))
		}
		if p := c.Process(); p != nil {
			if err := errors.Join(p.Resume(), p.Kill9()); err != nil {
				t.Error(err)
			}
		}
		if err := c.Close(); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return c
}

// form starts all servers and agents with the commands of the README.
func (s *several) form() {
	s.t.Helper()
	first := s.servers[0]
	s.must(first.Start("server"))
	s.ready(first)
	for _, c := range s.servers[1:] {
		s.join(c, "server")
		s.ready(c)
	}
	for _, c := range s.agents {
		s.join(c, "agent")
	}
	first.eventually("all servers vote", func() error {
		out, err := first.Balsa(s.t.Context(), "members")
		if n := countWord(out, "voter"); err == nil && n < len(s.servers) {
			err = fmt.Errorf("%d of %d vote:\n%s", n, len(s.servers), out)
		}
		return err
	})
	for _, c := range s.agents {
		first.eventually(c.NodeName()+" is ready", func() error {
			return first.wants("True", "get", "node", c.NodeName(), "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)()
		})
	}
}

func (s *several) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// api returns the address of a server's one port.
func (c *cluster) api() string { return net.JoinHostPort(c.Addr.String(), "6443") }

func (s *several) join(c *cluster, role string) {
	s.t.Helper()
	token, err := s.servers[0].Token(s.t.Context(), role)
	s.must(err)
	s.must(c.Start(role, "--join="+s.servers[0].api(), "--token="+token))
}

// ready waits until a server serves consistent reads.
func (s *several) ready(c *cluster) {
	s.t.Helper()
	c.eventually(c.NodeName()+" serves", func() error {
		if p := c.Process(); !p.Running() {
			s.t.Fatalf("%s has ended:\n%s", c.NodeName(), tail(c.Log(), 30))
		}
		_, err := c.Kubectl(s.t.Context(), "get", "namespace", "default")
		return err
	})
}

// client returns a client of one server's API on the clients' machine, with a short timeout.
func (s *several) client(c *cluster) *kubernetes.Clientset { return s.clientWithin(c, 3*time.Second) }

func (s *several) clientWithin(c *cluster, patience time.Duration) *kubernetes.Clientset {
	s.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", s.servers[0].Kubeconfig())
	s.must(err)
	cfg.Host, cfg.Dial, cfg.QPS, cfg.Burst, cfg.Timeout = "https://"+c.api(), s.net.Client.Dial, -1, -1, patience
	client, err := kubernetes.NewForConfig(cfg)
	s.must(err)
	return client
}

// leader returns the server that the others report as Raft's leader.
func (s *several) leader() *cluster {
	s.t.Helper()
	var found *cluster
	s.servers[0].eventually("somebody leads", func() error {
		for _, asked := range s.servers {
			if !asked.Process().Running() {
				continue
			}
			out, err := asked.Balsa(s.t.Context(), "members")
			if err != nil {
				return err
			}
			for _, c := range s.servers {
				if leads(out, c.NodeName()) {
					found = c
					return nil
				}
			}
			return fmt.Errorf("no leader in %s", out)
		}
		return errors.New("no server runs")
	})
	return found
}

// writes are ConfigMaps that clients create and update through changing servers. A failed write is tried once more, at
// the next server.
type writes struct {
	s    *several
	stop func()

	mu           sync.Mutex
	acknowledged map[string]string // newest value by name
	last         time.Time
	gap          time.Duration
	twice        int // failed at two servers
}

const crowd = 4 // clients that write

// load lets clients write until the returned writes are stopped.
func (s *several) load() *writes {
	ctx, cancel := context.WithCancel(s.t.Context())
	w := &writes{s: s, acknowledged: map[string]string{}, last: time.Now()}
	var clients []*kubernetes.Clientset
	for _, c := range s.servers {
		clients = append(clients, s.client(c))
	}
	var joined sync.WaitGroup
	for id := range crowd {
		joined.Go(func() { w.write(ctx, clients, id) })
	}
	w.stop = sync.OnceFunc(func() { cancel(); joined.Wait() })
	s.t.Cleanup(w.stop)
	return w
}

func (w *writes) write(ctx context.Context, clients []*kubernetes.Clientset, id int) {
	at := id % len(clients)
	for n := 0; ctx.Err() == nil; n++ {
		name, value := fmt.Sprintf("load-%d-%d", id, n%50), fmt.Sprintf("%d-%d", id, n)
		err := put(ctx, clients[at], name, value)
		if err != nil && ctx.Err() == nil {
			at = (at + 1) % len(clients)
			err = put(ctx, clients[at], name, value)
		}
		w.mu.Lock()
		switch {
		case err == nil:
			w.gap, w.last = max(w.gap, time.Since(w.last)), time.Now()
			w.acknowledged[name] = value
		default:
			delete(w.acknowledged, name) // it may have the old or the new value
			if ctx.Err() == nil {
				w.twice++
			}
		}
		w.mu.Unlock()
	}
}

func put(ctx context.Context, client *kubernetes.Clientset, name, value string) error {
	maps := client.CoreV1().ConfigMaps("default")
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": value}}
	_, err := maps.Update(ctx, object, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, object, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the first attempt took effect, but its answer was lost
			_, err = maps.Update(ctx, object, metav1.UpdateOptions{})
		}
	}
	return err
}

// longest returns the longest time without an acknowledged write since its last call.
func (w *writes) longest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	gap := max(w.gap, time.Since(w.last))
	w.gap, w.last = 0, time.Now()
	return gap
}

// check stops the clients and reads every acknowledged write from every running server.
func (w *writes) check() {
	w.s.t.Helper()
	w.stop()
	for _, c := range w.s.servers {
		if !c.Process().Running() {
			continue
		}
		list, err := w.s.clientWithin(c, time.Minute).CoreV1().ConfigMaps("default").List(w.s.t.Context(), metav1.ListOptions{})
		w.s.must(err)
		there := map[string]string{}
		for _, object := range list.Items {
			there[object.Name] = object.Data["value"]
		}
		for name, want := range w.acknowledged {
			if there[name] != want {
				w.s.t.Errorf("%s: acknowledged write of %s to %s is lost: it holds %q", c.NodeName(), want, name, there[name])
			}
		}
		if len(w.acknowledged) == 0 {
			w.s.t.Error("no write was acknowledged")
		}
	}
}

// leads reports whether `balsa members` names a server as the leader.
func leads(members, name string) bool {
	for line := range strings.Lines(members) {
		if f := strings.Fields(line); len(f) > 4 && f[0] == name && f[4] == "yes" {
			return true
		}
	}
	return false
}

// without drops the lines that contain a mark.
func without(text, mark string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if !strings.Contains(line, mark) {
			out.WriteString(line)
		}
	}
	return out.String()
}
