package speaker

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/overlay/nettest"
)

// space is a network namespace made by a test.
type space struct{ nettest.Space }

func newSpace(t testing.TB) space { return space{nettest.New(t)} }

// serve answers connections to the port with the name.
func (s space) serve(name, address string) {
	s.T.Helper()
	var l net.Listener
	if err := s.Do(func() (err error) { l, err = net.Listen("tcp", address); return err }); err != nil {
		s.T.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, name)
			c.Close()
		}
	}()
	s.T.Cleanup(func() {
		l.Close()
		<-done
	})
}

func (s space) ask(address string) string {
	var c net.Conn
	err := s.Do(func() (err error) { c, err = net.DialTimeout("tcp", address, 2*time.Second); return err })
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	b, _ := io.ReadAll(c)
	return string(b)
}

// site is a client and nodes on one switch; the nodes take connections to every address the tests announce, and their
// kernels answer nobody who asks for one of these.
type site struct {
	t      *testing.T
	client space
	api    *fake.Clientset
	nodes  map[string]*machine
}

// machine is a node.
type machine struct {
	space
	name    string
	mac     string
	api     *fake.Clientset // what it sees
	confirm func(context.Context) error
	stop    func()
}

const vip, vip6 = "192.0.2.200", "2001:db8::200"

func newLAN(t *testing.T, names ...string) *site {
	t.Helper()
	l := &site{t: t, client: newSpace(t), api: fake.NewClientset(), nodes: map[string]*machine{}}
	l.client.Run("ip", "link", "add", "lan", "address", "02:00:00:00:00:01", "type", "bridge")
	l.client.Run("ip", "link", "set", "lan", "up")
	l.client.Run("ip", "addr", "add", "192.0.2.1/24", "dev", "lan")
	l.client.Run("ip", "addr", "add", "2001:db8::1/64", "dev", "lan", "nodad")
	for i, name := range names {
		m := &machine{space: newSpace(t), name: name, mac: fmt.Sprintf("02:00:00:00:01:%02x", i), api: l.api, stop: func() {}}
		l.client.Run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "address", m.mac, "netns", m.Path)
		l.client.Run("ip", "link", "set", name, "master", "lan", "up")
		m.Run("ip", "link", "set", "eth0", "up")
		m.Run("ip", "addr", "add", fmt.Sprintf("192.0.2.%d/24", 11+i), "dev", "eth0")
		m.Run("ip", "addr", "add", fmt.Sprintf("2001:db8::%d/64", 11+i), "dev", "eth0", "nodad")
		m.Run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore")
		for n := range 10 {
			m.Run("ip", "addr", "add", fmt.Sprintf("192.0.2.%d/32", 200+n), "dev", "lo")
			m.Run("ip", "addr", "add", fmt.Sprintf("2001:db8::%d/128", 200+n), "dev", "lo")
		}
		m.serve(name, ":80")
		l.nodes[name] = m
		l.setNode(l.api, name, true)
	}
	for _, m := range l.nodes {
		m.start()
	}
	return l
}

// holder waits until the nodes have told their networks, which they do once there are addresses, and says who is to have
// one: until all know of all, others may have it.
func (l *site) holder(address string) string {
	l.t.Helper()
	var all []nodeView
	l.eventually("the nodes tell their networks", func() bool {
		nodes, err := l.api.CoreV1().Nodes().List(l.t.Context(), metav1.ListOptions{})
		if err != nil {
			return false
		}
		all = all[:0]
		for i := range nodes.Items {
			all = append(all, nodeViewOf(&nodes.Items[i]))
		}
		return !slices.ContainsFunc(all, func(s nodeView) bool { return s.able && s.lans == "" })
	})
	return candidatesOf(all).holder(balancer{}, netip.MustParseAddr(address))
}

func (l *site) setNode(api *fake.Clientset, name string, ready bool, with ...func(*v1.Node)) {
	l.t.Helper()
	nodes := api.CoreV1().Nodes()
	n, err := nodes.Get(l.t.Context(), name, metav1.GetOptions{})
	create := err != nil
	if create {
		n = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: map[bool]v1.ConditionStatus{true: v1.ConditionTrue, false: v1.ConditionUnknown}[ready]}}
	for _, f := range with {
		f(n)
	}
	if create {
		_, err = nodes.Create(l.t.Context(), n, metav1.CreateOptions{})
	} else {
		_, err = nodes.Update(l.t.Context(), n, metav1.UpdateOptions{})
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

func (m *machine) start() {
	m.T.Helper()
	factory := informers.NewSharedInformerFactory(m.api, 0)
	cfg := Config{
		NodeName: m.name, Informers: factory, NetNS: m.Path, Inside: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Logger: slog.New(slog.NewTextHandler(m.T.Output(), nil)).With("on", m.name),
		Publish: func(ctx context.Context, key, value string) error {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
			_, err := m.api.CoreV1().Nodes().Patch(ctx, m.name, "application/merge-patch+json", patch, metav1.PatchOptions{})
			return err
		},
		Confirm: func(ctx context.Context) error {
			if m.confirm == nil {
				return nil
			}
			return m.confirm(ctx)
		},
	}
	a, err := New(cfg)
	if err != nil {
		m.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	stopped := false
	m.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			m.T.Errorf("Run returned %v", err)
		}
		factory.Shutdown()
	}
	m.T.Cleanup(func() { m.stop() })
}

func service(name string, addresses ...string) *v1.Service {
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name}, Spec: v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer}}
	s.Status.Conditions = []metav1.Condition{{Type: Condition, Status: metav1.ConditionTrue}}
	for _, a := range addresses {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: a})
	}
	return s
}

func (l *site) create(s *v1.Service) {
	l.t.Helper()
	if _, err := l.api.CoreV1().Services("d").Create(l.t.Context(), s, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

func endpoints(service string, nodes ...string) *discovery.EndpointSlice {
	s := &discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: service, Labels: map[string]string{discovery.LabelServiceName: service}}}
	for _, n := range nodes {
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{Addresses: []string{"10.244.0.5"}, NodeName: &n})
	}
	return s
}

func (l *site) eventually(what string, ok func() bool) {
	l.t.Helper()
	nettest.Eventually(l.t, what, ok, func() string { return l.client.Run("ip", "neigh") })
}

// reached waits until the client reaches the address at one of the nodes, and returns which.
func (l *site) reached(address string, among ...string) (name string) {
	l.t.Helper()
	l.eventually(address+" at one of "+strings.Join(among, ", "), func() bool {
		name = l.client.ask(net.JoinHostPort(address, "80"))
		return slices.Contains(among, name)
	})
	return name
}

// who asks the whole LAN for an IPv4 address and returns the names of all who answer within a while.
func (l *site) who(address string) (names []string) {
	l.t.Helper()
	var c *packet.Conn
	var link *net.Interface
	err := l.client.Do(func() (err error) {
		if link, err = net.InterfaceByName("lan"); err == nil {
			c, err = packet.Listen(link, packet.Datagram, unix.ETH_P_ARP, nil)
		}
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	defer c.Close()
	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	ask := arpPacket{op: arpRequest, senderMAC: link.HardwareAddr, sender: netip.MustParseAddr("192.0.2.1"), targetMAC: make(net.HardwareAddr, 6), target: netip.MustParseAddr(address)}
	if _, err := c.WriteTo(ask.bytes(), &packet.Addr{HardwareAddr: broadcast}); err != nil {
		l.t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	buffer := make([]byte, 100)
	for {
		n, _, err := c.ReadFrom(buffer)
		if err != nil {
			slices.Sort(names)
			return slices.Compact(names)
		}
		if p, ok := parseARP(buffer[:n]); ok && p.op == arpReply && p.sender == ask.target && p.target == ask.sender {
			for _, m := range l.nodes {
				if m.mac == p.senderMAC.String() {
					names = append(names, m.name)
				}
			}
		}
	}
}

// only waits until nobody but the node that is to have the address answers for it.
func (l *site) only(address string) string {
	l.t.Helper()
	name := l.holder(address)
	l.eventually("nobody but "+name+" answers for "+address, func() bool { return slices.Equal(l.who(address), []string{name}) })
	return name
}

func (l *site) others(name string) (out []string) {
	for n := range l.nodes {
		if n != name {
			out = append(out, n)
		}
	}
	return out
}

// sockets counts the packet sockets of the node.
func (m *machine) sockets() int {
	return strings.Count(m.Run("cat", "/proc/self/net/packet"), "\n") - 1
}
