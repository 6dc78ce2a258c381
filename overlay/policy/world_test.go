package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/overlay/nettest"
	"github.com/balsahq/balsa/overlay/policy/policytest"
)

// space is a network namespace made by a test.
type space struct{ nettest.Space }

func newSpace(t testing.TB) space { return space{nettest.New(t)} }

// place is somewhere packets come from and go to: a pod, or an address outside.
type place struct {
	space
	address   [2]string // by family, IPv4 first
	elsewhere bool      // not on the node
}

func (p *place) ip() string { return p.address[0] }

// world is a node with pods, and a host where everything else is.
type world struct {
	t       *testing.T
	node    space
	outside space
	places  map[string]*place
	client  *fake.Clientset
	engine  *Engine
	stop    func()
}

const bridge = "balsa0"

func addressesOfPod(n int) [2]string {
	return [2]string{fmt.Sprintf("10.244.0.%d", n), fmt.Sprintf("fd00:244::%x", n)}
}

// newWorld makes pods a, b, c… (of this node) at addresses that end in 2, 3, 4…, as many elsewhere, and outside.
func newWorld(t *testing.T, here, elsewhere int) *world {
	t.Helper()
	w := &world{t: t, node: newSpace(t), outside: newSpace(t), places: map[string]*place{}, client: fake.NewClientset(), stop: func() {}}
	w.node.Sh(`ip link set lo up
		for f in /proc/sys/net/ipv4/conf/all /proc/sys/net/ipv4/conf/default; do echo 0 > $f/send_redirects; echo 0 > $f/rp_filter; done
		ip link add %[1]s type bridge; ip link set %[1]s up; ip addr add 10.244.0.1/24 dev %[1]s; ip addr add fd00:244::1/64 dev %[1]s nodad
		echo 0 > /proc/sys/net/ipv4/conf/%[1]s/send_redirects
		ip link add eth0 type veth peer name eth0 netns %[2]s
		ip link set eth0 up; ip addr add 192.0.2.254/24 dev eth0; ip addr add fd00:1::fe/64 dev eth0 nodad
		for f in /proc/sys/net/bridge/bridge-nf-call-ip*tables; do test ! -e $f || echo 0 > $f; done
		echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding`, bridge, w.outside.Path)
	w.outside.Sh(`ip link set lo up; ip link set eth0 up; ip addr add 192.0.2.1/24 dev eth0; ip addr add fd00:1::1/64 dev eth0 nodad
		ip route add 10.244.0.0/16 via 192.0.2.254; ip route add fd00:244::/64 via fd00:1::fe`)
	w.places["outside"] = &place{w.outside, [2]string{"192.0.2.1", "fd00:1::1"}, true}
	for i := range here + elsewhere {
		name, address := string(rune('a'+i)), addressesOfPod(i+2)
		if i < here {
			w.places[name] = &place{newSpace(t), address, false}
			w.plug(name)
			continue
		}
		w.places[name] = &place{w.outside, address, true}
		w.outside.Sh("ip addr add %s/32 dev lo; ip addr add %s/128 dev lo nodad", address[0], address[1])
		w.node.Sh("ip route add %s/32 via 192.0.2.1; ip route add %s/128 via fd00:1::1", address[0], address[1])
	}
	t.Cleanup(func() { w.stop() })
	return w
}

// plug puts a pod on the bridge.
func (w *world) plug(name string) {
	p := w.places[name]
	w.node.Sh(`ip link add veth-%[1]s type veth peer name eth0 netns %[2]s
		ip link set veth-%[1]s master %[3]s; ip link set veth-%[1]s up
		ip link set veth-%[1]s type bridge_slave hairpin on isolated on`, name, p.Path, bridge)
	p.Sh(`ip link set lo up; ip link set eth0 up; echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_redirects; ip addr add %[1]s/32 dev eth0; ip addr add %[2]s/128 dev eth0 nodad
		ip route add 10.244.0.1 dev eth0; ip route add default via 10.244.0.1
		ip route add fd00:244::1 dev eth0; ip route add default via fd00:244::1`, p.address[0], p.address[1])
}

// start runs an engine over whatever is in the kernel.
func (w *world) start() {
	w.t.Helper()
	e, err := New(Config{NodeName: policytest.Node, Client: w.client, Bridge: bridge, IPv6: true, NetNS: w.node.Path,
		Logger: slog.New(slog.NewTextHandler(w.t.Output(), nil))})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	w.engine = e
	w.stop = func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.t.Errorf("Run returned %v", err)
		}
		w.stop = func() {}
	}
	w.eventually("policies read", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.read
	})
}

// eventually polls until ok, or fails.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	nettest.Eventually(w.t, what, ok, w.rules)
}

// rules is what is in the kernel, with handles: equal texts mean that nothing was touched. The connections that were cut
// are left out: how many there are, their clients' haste decides, and they expire.
func (w *world) rules() string {
	return cutOnes.ReplaceAllString(w.node.Sh("nft -a list table ip balsa-policy 2>&1 || true"), "$1")
}

var cutOnes = regexp.MustCompile(`(?s)(set cut \{[^}]*?)\s*elements = \{[^}]*\}`)

// serve answers every connection and every datagram to a place's port with whom it saw.
func (p *place) serve(port int) {
	p.T.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	at := net.JoinHostPort(p.ip(), fmt.Sprint(port))
	err := p.Do(func() (err error) {
		if tcp, err = net.Listen("tcp", at); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp", at)
		return err
	})
	if err != nil {
		p.T.Fatal(err)
	}
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintln(c, c.RemoteAddr())
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		buffer := make([]byte, 64)
		for {
			_, from, err := udp.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo([]byte("here"), from)
		}
	}()
	p.T.Cleanup(func() {
		tcp.Close()
		udp.Close()
		<-done
		<-done
	})
}

// patienceOfProbe is how long an answer may take where it is asked for again when there is none; inTheEnd is how long it may
// take where there must be one, on whatever machine.
const patienceOfProbe, inTheEnd = 150 * time.Millisecond, 20 * time.Second

// dial connects from a namespace with a source address.
func (s space) dial(network, source, to string, patience time.Duration) (c net.Conn, err error) {
	err = s.Do(func() error {
		d := net.Dialer{Timeout: patience}
		if source != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(source)}
			if network == "udp" {
				d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(source)}
			}
		}
		c, err = d.Dial(network, to)
		return err
	})
	return c, err
}

// reaches tells whether a place gets an answer from an address soon; what it may, it does sooner or later.
func (p *place) reaches(network, to string) bool {
	return p.reachesWithin(patienceOfProbe, network, to)
}

func (p *place) reachesWithin(limit time.Duration, network, to string) bool {
	c, err := p.dial(network, p.ip(), to, limit)
	if err != nil {
		return false
	}
	defer c.Close()
	return answeredWithin(limit, c, network)
}

func answered(c net.Conn, network string) bool { return answeredWithin(patienceOfProbe, c, network) }

func answeredWithin(limit time.Duration, c net.Conn, network string) bool {
	_ = c.SetDeadline(time.Now().Add(limit))
	if network == "udp" {
		if _, err := c.Write([]byte("?")); err != nil {
			return false
		}
	}
	_, err := c.Read(make([]byte, 64))
	return err == nil
}

// can waits until a place reaches (or does not reach) a port of another, by TCP.
func (w *world) can(from, to string, port int, want bool) {
	w.t.Helper()
	at := net.JoinHostPort(w.places[to].ip(), fmt.Sprint(port))
	w.eventually(fmt.Sprintf("%s reaches %s at %d: %t", from, to, port, want), func() bool {
		return w.places[from].reaches("tcp", at) == want
	})
}

// pod tells the API of a pod of this world, as if it had run for long.
func (w *world) pod(namespace, name string, labels map[string]string, change ...func(*v1.Pod)) *v1.Pod {
	w.t.Helper()
	p := policytest.Seeded(1).Pod(namespace, name, w.places[name].address[:]...)
	p.Labels = labels
	if w.places[name].elsewhere {
		p.Spec.NodeName = "elsewhere"
	}
	for _, f := range change {
		f(p)
	}
	if _, err := w.client.CoreV1().Pods(namespace).Create(w.t.Context(), p, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) namespace(name string, labels map[string]string) {
	w.t.Helper()
	n := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	_, err := w.client.CoreV1().Namespaces().Create(w.t.Context(), n, metav1.CreateOptions{})
	if err != nil {
		_, err = w.client.CoreV1().Namespaces().Update(w.t.Context(), n, metav1.UpdateOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// policy creates or updates one that selects pods with a label app.
func (w *world) policy(namespace, name, app string, spec networking.NetworkPolicySpec) {
	w.t.Helper()
	if app != "" {
		spec.PodSelector.MatchLabels = map[string]string{"app": app}
	}
	np := &networking.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
	api := w.client.NetworkingV1().NetworkPolicies(namespace)
	_, err := api.Create(w.t.Context(), np, metav1.CreateOptions{})
	if err != nil {
		_, err = api.Update(w.t.Context(), np, metav1.UpdateOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) noPolicy(namespace, name string) {
	w.t.Helper()
	if err := w.client.NetworkingV1().NetworkPolicies(namespace).Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// settled waits until the kernel has all that the engine knows.
func (w *world) settled() {
	w.t.Helper()
	w.eventually("all in the kernel", func() bool {
		w.engine.mu.Lock()
		defer w.engine.mu.Unlock()
		return w.engine.applied == w.engine.changes && w.engine.failed == nil
	})
}

func addrs(list [2]string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func lines(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") }
