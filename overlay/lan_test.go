package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/overlay/routes"

	"github.com/balsahq/balsa/overlay/nettest"
	"github.com/balsahq/balsa/overlay/relay"
)

// lan is several nodes on two subnets with a router between them, that lets no packet with a pod's address pass:
//
//	n1, n2:   192.0.2.0/25, 2001:db8:1::/64 ─┐
//	                                         ├─ router (.1 and .129), from where clients outside the cluster come too
//	n3, n4: 192.0.2.128/25, 2001:db8:2::/64 ─┘
type lan struct {
	t      *testing.T
	router space
	client *fake.Clientset
	nodes  []*member
	mode   routes.Mode
	dual   bool // both families
	log    *journal
}

// member is a node with one pod.
type member struct {
	name, address, podAddress string
	pods                      netip.Prefix
	// The same of IPv6; not valid where there is only one family.
	address6, podAddress6 string
	pods6                 netip.Prefix
	host, pod             space
	cfg                   Config
	stop                  func()
	falseKey              string // published instead of its own
}

// journal keeps what nodes log, and shows it.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
	to   io.Writer
}

// Write implements io.Writer.
func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.text.Write(line)
	return j.to.Write(line)
}

func (j *journal) contains(words ...string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for line := range strings.Lines(j.text.String()) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return true
		}
	}
	return false
}

func newLAN(t *testing.T, mode routes.Mode) *lan {
	t.Helper()
	l := newSubnets(t, mode)
	l.populate()
	return l
}

// newDualLAN is a LAN of both families.
func newDualLAN(t *testing.T, mode routes.Mode) *lan {
	t.Helper()
	l := newSubnets(t, mode)
	l.dual = true
	l.router.Run("sh", "-c", "for i in 1 2; do ip addr add 2001:db8:$i::1/64 dev s$i nodad; done; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")
	l.router.Run("nft", "add table ip6 guard")
	l.router.Run("nft", "add chain ip6 guard pass { type filter hook forward priority 0 ; }")
	l.router.Run("nft", "add rule ip6 guard pass ip6 saddr fd00:244::/48 drop")
	l.router.Run("nft", "add rule ip6 guard pass ip6 daddr fd00:244::/48 drop")
	l.populate()
	return l
}

// newSubnets is a LAN without nodes.
func newSubnets(t *testing.T, mode routes.Mode) *lan {
	t.Helper()
	l := &lan{t: t, router: newSpace(t), client: fake.NewClientset(), mode: mode, log: &journal{to: t.Output()}}
	for bridge, address := range map[string]string{"s1": "192.0.2.1/25", "s2": "192.0.2.129/25"} {
		// With an address of its own a bridge does not take that of its next port, which nobody would know.
		l.router.Run("ip", "link", "add", bridge, "address", "02:00:00:00:00:0"+bridge[1:], "type", "bridge")
		l.router.Run("ip", "addr", "add", address, "dev", bridge)
		l.router.Run("ip", "link", "set", bridge, "up")
	}
	l.router.Run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
	// What stays on a subnet is none of the guard's business, even where br_netfilter is loaded.
	l.router.Run("sh", "-c", "for f in /proc/sys/net/bridge/bridge-nf-call-ip*tables; do if [ -e $f ]; then echo 0 > $f; fi; done")
	l.router.Run("nft", "add table ip guard")
	l.router.Run("nft", "add chain ip guard pass { type filter hook forward priority 0 ; }")
	l.router.Run("nft", "add rule ip guard pass ip saddr 10.244.0.0/16 drop")
	l.router.Run("nft", "add rule ip guard pass ip daddr 10.244.0.0/16 drop")
	l.router.serve("outside", "192.0.2.1:9000")
	return l
}

// populate makes four nodes and their pods.
func (l *lan) populate() {
	l.t.Helper()
	for i, address := range []string{"192.0.2.11", "192.0.2.12", "192.0.2.140", "192.0.2.141"} {
		m := l.plugNode(i+1, address)
		l.nodes = append(l.nodes, m)
		l.announce(m)
	}
	for _, m := range l.nodes {
		m.start(l)
		m.plugPod(l.t)
	}
}

// plugNode makes a host on the subnet of its address.
func (l *lan) plugNode(number int, address string) *member {
	t := l.t
	pods := netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", number))
	m := &member{name: fmt.Sprintf("n%d", number), address: address, pods: pods, host: newSpace(t), pod: newSpace(t),
		podAddress: pods.Addr().Next().Next().String(), stop: func() {}}
	subnet, gateway := "s1", "192.0.2.1"
	if a := netip.MustParseAddr(address); netip.MustParsePrefix("192.0.2.128/25").Contains(a) {
		subnet, gateway = "s2", "192.0.2.129"
	}
	if l.dual {
		m.host.Run("sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/all/forwarding; echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad")
	} else {
		// Links announce IPv6 addresses of their own a while after they came up, which a test would take for somebody's doing.
		m.host.Run("sh", "-c", "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do if [ -e $f ]; then echo 1 > $f; fi; done")
	}
	cable(t, l.router, m.host, m.name, "eth0", "", address+"/25")
	l.router.Run("ip", "link", "set", m.name, "master", subnet)
	m.host.Run("ip", "route", "add", "default", "via", gateway)
	m.host.Run("sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward")
	m.host.serve(m.name, "0.0.0.0:7070")
	m.cfg = m.config(m.host.Path, t.TempDir())
	m.cfg.Logger = slog.New(slog.NewTextHandler(l.log, nil)).With("on", m.name)
	m.cfg.Mode = l.mode
	if l.dual {
		m.addSecondFamily(number, subnet[1:])
	}
	t.Cleanup(func() { m.stop() })
	return m
}

func (m *member) config(netns, dir string) Config {
	return Config{
		NodeName: m.name, NetNS: netns, CNIConfDir: filepath.Join(dir, "net.d"), StateDir: filepath.Join(dir, "state"),
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		ResolvConf: "/dev/null",
	}
}

func (m *member) addSecondFamily(number int, subnet string) {
	m.address6 = fmt.Sprintf("2001:db8:%s::1%d", subnet, number)
	m.pods6 = netip.MustParsePrefix(fmt.Sprintf("fd00:244:0:%d::/64", number))
	m.podAddress6 = m.pods6.Addr().Next().Next().String()
	m.host.Run("ip", "addr", "add", m.address6+"/64", "dev", "eth0", "nodad")
	m.host.Run("ip", "route", "add", "default", "via", "2001:db8:"+subnet+"::1")
	m.cfg.PodCIDRs = append(m.cfg.PodCIDRs, netip.MustParsePrefix("fd00:244::/48"))
	m.cfg.ServiceCIDRs = append(m.cfg.ServiceCIDRs, netip.MustParsePrefix("fd00:96::/112"))
}

func (m *member) object() *v1.Node {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: m.name, CreationTimestamp: metav1.Unix(int64(m.pods.Addr().As4()[2]), 0)},
		Spec:       v1.NodeSpec{PodCIDR: m.pods.String(), PodCIDRs: []string{m.pods.String()}},
		Status:     v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: m.address}}},
	}
	if m.pods6.IsValid() {
		n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, m.pods6.String())
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: m.address6})
	}
	return n
}

func (l *lan) announce(m *member) {
	l.t.Helper()
	nodes := l.client.CoreV1().Nodes()
	_, err := nodes.Update(l.t.Context(), m.object(), metav1.UpdateOptions{})
	if err != nil {
		_, err = nodes.Create(l.t.Context(), m.object(), metav1.CreateOptions{})
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

func (m *member) start(l *lan) {
	l.t.Helper()
	var err error
	ctx, cancel := context.WithCancel(context.Background())
	factory := informers.NewSharedInformerFactory(l.client, 0)
	cfg := m.cfg
	cfg.Informers = factory
	cfg.Publish = func(ctx context.Context, key, value string) error {
		if m.falseKey != "" {
			value = m.falseKey
		}
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
		_, err := l.client.CoreV1().Nodes().Patch(ctx, m.name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	if cfg.Mode == routes.WireGuard {
		if cfg.Key, err = relay.LoadKey(filepath.Join(cfg.StateDir, "wireguard.key")); err != nil {
			l.t.Fatal(err)
		}
	}
	n, err := New(cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	stopped := false
	m.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			l.t.Errorf("Run returned %v", err)
		}
		factory.Shutdown()
	}
	select {
	case <-n.Ready():
	case <-time.After(time.Minute):
		l.t.Fatal("the network did not become ready")
	}
}

func (m *member) plugPod(t *testing.T) {
	t.Helper()
	m.plugInto(t, m.pod, "veth-pod", m.podAddress, m.podAddress6)
	m.pod.serve("pod-"+m.name, m.podAddress+":8080")
	if m.pods6.IsValid() {
		m.pod.serve("pod-"+m.name, "["+m.podAddress6+"]:8080")
	}
}

// plugInto puts a pod on the bridge, with addresses and routes as the CNI configuration has them.
func (m *member) plugInto(t *testing.T, pod space, link, address, address6 string) {
	t.Helper()
	cable(t, m.host, pod, link, "eth0", "", address+"/24")
	m.host.Run("ip", "link", "set", link, "master", DefaultBridge)
	m.host.Run("ip", "link", "set", link, "type", "bridge_slave", "hairpin", "on", "isolated", "on")
	pod.Run("ip", "route", "add", "default", "via", m.pods.Addr().Next().String())
	if !m.pods6.IsValid() {
		return
	}
	gateway := m.pods6.Addr().Next().String()
	pod.Run("ip", "addr", "add", address6+"/64", "dev", "eth0", "nodad")
	pod.Run("ip", "route", "add", "default", "via", gateway)
	for _, half := range halves(m.pods6) {
		pod.Run("ip", "route", "add", half.String(), "via", gateway)
	}
}

func (l *lan) eventually(what string, ok func() bool) {
	l.t.Helper()
	nettest.Eventually(l.t, what, ok, l.state)
}

// ways is what the kernel of a node holds about the others.
func (m *member) ways() string {
	var out strings.Builder
	tunnel := DefaultTunnel
	if m.cfg.Mode == routes.UDP {
		tunnel = DefaultRelay
	}
	for _, args := range []string{"-d -o link show " + tunnel, "-o addr show " + tunnel, "route", "-6 route", "neigh show dev " + tunnel} {
		text, _ := exec.Command("nsenter", append([]string{"--net=" + m.host.Path, "ip"}, strings.Fields(args)...)...).CombinedOutput()
		out.Write(text)
	}
	text, _ := exec.Command("nsenter", "--net="+m.host.Path, "bridge", "fdb", "show", "dev", DefaultTunnel).CombinedOutput()
	out.Write(text)
	text, _ = exec.Command("nsenter", "--net="+m.host.Path, "nft", "list", "set", "ip", "balsa", "members").CombinedOutput()
	out.Write(text)
	return out.String()
}

func (l *lan) state() string {
	var out strings.Builder
	for _, m := range l.nodes {
		fmt.Fprintf(&out, "--- %s\n%s", m.name, m.ways())
	}
	return out.String()
}

// reached waits until an ask is answered by somebody who sees one of the addresses given; none: any.
func (l *lan) reached(from space, address, name string, as ...string) {
	l.t.Helper()
	last := ""
	l.t.Cleanup(func() {
		if l.t.Failed() {
			l.t.Logf("%s at %s, last: %s", name, address, last)
		}
	})
	l.eventually(name+" at "+address+" seen as "+strings.Join(as, " or "), func() bool {
		who, seen, err := from.ask("tcp", address)
		last = fmt.Sprint(who, " ", seen, " ", err)
		match := len(as) == 0
		for _, a := range as {
			match = match || seen == a
		}
		return err == nil && who == name && match
	})
}

// all tries every pair of nodes, in each family: pod to pod with its source kept, pod to node, node to pod, and the
// answer's way.
func (l *lan) all() {
	l.t.Helper()
	for _, a := range l.nodes {
		for _, b := range l.nodes {
			if a == b {
				continue
			}
			l.reached(a.pod, b.podAddress+":8080", "pod-"+b.name, a.podAddress)
			l.reached(a.pod, b.address+":7070", b.name)
			l.reached(a.host, b.podAddress+":8080", "pod-"+b.name, a.address, a.pods.Addr().String())
			if l.dual {
				l.reached(a.pod, "["+b.podAddress6+"]:8080", "pod-"+b.name, a.podAddress6)
				l.reached(a.pod, "["+b.address6+"]:7070", b.name)
				l.reached(a.host, "["+b.podAddress6+"]:8080", "pod-"+b.name, a.address6, a.pods6.Addr().Next().String())
			}
		}
		l.reached(a.pod, "192.0.2.1:9000", "outside", a.address)
	}
}

// service has one pod behind it.
func (l *lan) service(name, ip string, port int32, backend *member) {
	l.t.Helper()
	svc := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeNodePort, ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []v1.ServicePort{{Name: "web", Port: 80, Protocol: v1.ProtocolTCP, NodePort: port}}},
	}
	if _, err := l.client.CoreV1().Services("default").Create(l.t.Context(), svc, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
	s := slice(name, []string{backend.podAddress})
	s.Endpoints[0].NodeName = &backend.name
	if _, err := l.client.DiscoveryV1().EndpointSlices("default").Create(l.t.Context(), s, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
}
