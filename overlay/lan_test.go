package overlay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/overlay/mesh"
)

// lan is several nodes on two subnets with a router between them, that lets no packet with a pod's address pass:
//
//	n1, n2: 192.0.2.0/25 ─┐
//	                      ├─ router (.1 and .129), from where clients outside the cluster come too
//	n3:   192.0.2.128/25 ─┘
type lan struct {
	t      *testing.T
	router space
	client *fake.Clientset
	nodes  []*member
}

// member is a node with one pod.
type member struct {
	name, address, podAddress string
	pods                      netip.Prefix
	host, pod                 space
	cfg                       Config
	stop                      func()
}

func newLAN(t *testing.T, mode mesh.Mode) *lan {
	t.Helper()
	l := &lan{t: t, router: newSpace(t), client: fake.NewClientset()}
	for bridge, address := range map[string]string{"s1": "192.0.2.1/25", "s2": "192.0.2.129/25"} {
		// With an address of its own a bridge does not take that of its next port, which nobody would know.
		l.router.run("ip", "link", "add", bridge, "address", "02:00:00:00:00:0"+bridge[1:], "type", "bridge")
		l.router.run("ip", "addr", "add", address, "dev", bridge)
		l.router.run("ip", "link", "set", bridge, "up")
	}
	l.router.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
	// What stays on a subnet is none of the guard's business, even where br_netfilter is loaded.
	l.router.run("sh", "-c", "for f in /proc/sys/net/bridge/bridge-nf-call-iptables; do if [ -e $f ]; then echo 0 > $f; fi; done")
	l.router.run("nft", "add table ip guard")
	l.router.run("nft", "add chain ip guard pass { type filter hook forward priority 0 ; }")
	l.router.run("nft", "add rule ip guard pass ip saddr 10.244.0.0/16 drop")
	l.router.run("nft", "add rule ip guard pass ip daddr 10.244.0.0/16 drop")
	l.router.serve("outside", "192.0.2.1:9000")
	for i, address := range []string{"192.0.2.11", "192.0.2.12", "192.0.2.140"} {
		m := l.plugNode(i+1, address)
		m.cfg.Mode = mode
		l.nodes = append(l.nodes, m)
		l.announce(m)
	}
	for _, m := range l.nodes {
		m.start(l)
		m.plugPod(t)
	}
	return l
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
	// Links announce IPv6 addresses of their own a while after they came up, which a test would take for somebody's doing.
	m.host.run("sh", "-c", "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do if [ -e $f ]; then echo 1 > $f; fi; done")
	cable(t, l.router, m.host, m.name, "eth0", "", address+"/25")
	l.router.run("ip", "link", "set", m.name, "master", subnet)
	m.host.run("ip", "route", "add", "default", "via", gateway)
	m.host.run("sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward")
	m.host.serve(m.name, "0.0.0.0:7070")
	dir := t.TempDir()
	m.cfg = Config{
		NodeName: m.name, NetNS: m.host.path, CNIConfDir: filepath.Join(dir, "net.d"), StateDir: filepath.Join(dir, "state"),
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		ResolvConf: "/dev/null", Logger: slog.New(slog.NewTextHandler(t.Output(), nil)).With("on", m.name),
	}
	t.Cleanup(func() { m.stop() })
	return m
}

func (m *member) object() *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: m.name, CreationTimestamp: metav1.Unix(int64(m.pods.Addr().As4()[2]), 0)},
		Spec:       v1.NodeSpec{PodCIDR: m.pods.String(), PodCIDRs: []string{m.pods.String()}},
		Status:     v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: m.address}}},
	}
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
	ctx, cancel := context.WithCancel(context.Background())
	factory := informers.NewSharedInformerFactory(l.client, 0)
	cfg := m.cfg
	cfg.Informers = factory
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
	case <-time.After(20 * time.Second):
		l.t.Fatal("the network did not become ready")
	}
}

func (m *member) plugPod(t *testing.T) {
	t.Helper()
	cable(t, m.host, m.pod, "veth-pod", "eth0", "", m.podAddress+"/24")
	m.host.run("ip", "link", "set", "veth-pod", "master", DefaultBridge)
	m.host.run("ip", "link", "set", "veth-pod", "type", "bridge_slave", "hairpin", "on", "isolated", "on")
	m.pod.run("ip", "route", "add", "default", "via", m.pods.Addr().Next().String())
	m.pod.serve("pod-"+m.name, m.podAddress+":8080")
}

func (l *lan) eventually(what string, ok func() bool) {
	l.t.Helper()
	deadline := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-deadline:
			l.t.Fatalf("waited in vain: %s\n%s", what, l.state())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// ways is what the kernel of a node holds about the others.
func (m *member) ways() string {
	var out strings.Builder
	for _, args := range []string{"-d -o link show " + DefaultTunnel, "-o addr show " + DefaultTunnel, "route", "neigh show dev " + DefaultTunnel} {
		text, _ := exec.Command("nsenter", append([]string{"--net=" + m.host.path, "ip"}, strings.Fields(args)...)...).CombinedOutput()
		out.Write(text)
	}
	text, _ := exec.Command("nsenter", "--net="+m.host.path, "bridge", "fdb", "show", "dev", DefaultTunnel).CombinedOutput()
	out.Write(text)
	text, _ = exec.Command("nsenter", "--net="+m.host.path, "nft", "list", "set", "ip", "balsa", "members").CombinedOutput()
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

// all tries every pair of nodes: pod to pod with its source kept, pod to node, node to pod, and the answer's way.
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
