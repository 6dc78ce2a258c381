package overlay

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/overlay/host"
	"github.com/balsahq/balsa/overlay/routes"
)

// stream sends datagrams to a pod, each when the one before was answered, until the test is over or stop is called; one
// that is not answered is a fault.
func (l *lan) stream(from, to *member) (stop func()) {
	l.t.Helper()
	var c net.Conn
	if err := from.pod.Do(func() (err error) {
		c, err = net.Dial("udp", to.podAddress+":8080")
		return err
	}); err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	var answered, lost atomic.Int64
	go func() {
		defer close(ended)
		defer c.Close()
		pace := time.NewTicker(2 * time.Millisecond)
		defer pace.Stop()
		for ctx.Err() == nil {
			if _, _, err := askOnWithin(time.Minute, c, "udp"); err != nil {
				lost.Add(1)
			}
			answered.Add(1)
			<-pace.C
		}
	}()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		<-ended
		if lost.Load() > 0 || answered.Load() < 2 {
			l.t.Errorf("%s to %s: %d of %d packets were lost", from.name, to.name, lost.Load(), answered.Load())
		}
	}
	l.t.Cleanup(stop)
	return stop
}

// TestDriftBetweenNodesIsRepaired: and as long as only what concerns one node drifts, no packet to another is lost.
func TestDriftBetweenNodesIsRepaired(t *testing.T) {
	t.Parallel()
	l := newLAN(t, routes.Auto)
	n1, n2, n3 := l.nodes[0], l.nodes[1], l.nodes[2]
	l.all()
	want := n3.ways()
	mac, vtep := "0a:58:0a:f4:01:00", "10.244.1.0"
	try := func(name, command string, on *member) {
		t.Run(name, func(t *testing.T) {
			before := on.ways()
			on.host.Run("sh", "-c", command)
			l.eventually("repaired: "+name, func() bool { return sorted(on.ways()) == sorted(before) })
			l.reached(n3.pod, n1.podAddress+":8080", "pod-n1", n3.podAddress)
		})
	}
	direct, tunnelled := l.stream(n1, n2), l.stream(n3, n2)
	try("route deleted", "ip route del 10.244.1.0/24", n3)
	try("route replaced", "ip route replace 10.244.1.0/24 via 192.0.2.129", n3)
	try("route for smaller packets", "ip route replace 10.244.1.0/24 via 10.244.1.0 dev balsa-vxlan onlink proto 98 mtu 700", n3)
	try("direct route deleted", "ip route del 10.244.4.0/24", n3)
	try("station deleted", "bridge fdb del "+mac+" dev balsa-vxlan dst 192.0.2.11", n3)
	try("station moved", "bridge fdb replace "+mac+" dev balsa-vxlan dst 192.0.2.99 self permanent", n3)
	try("station added", "bridge fdb append 0a:58:01:02:03:04 dev balsa-vxlan dst 192.0.2.99 self permanent", n3)
	try("neighbour deleted", "ip neigh del "+vtep+" dev balsa-vxlan", n3)
	try("neighbour changed", "ip neigh replace "+vtep+" lladdr 0a:58:01:02:03:04 dev balsa-vxlan nud permanent", n3)
	try("member taken from the set", "nft delete element ip balsa members { 192.0.2.11 }", n3)
	try("stale route", "ip route add 10.244.77.0/24 via 192.0.2.129 proto 98", n3)
	tunnelled()
	try("address deleted", "ip addr flush dev balsa-vxlan", n3)
	try("link down", "ip link set balsa-vxlan down", n3)
	try("smaller packets", "ip link set balsa-vxlan mtu 1200", n3)
	try("another link-layer address", "ip link set balsa-vxlan address 0a:58:01:02:03:04", n3)
	t.Run("link deleted", func(t *testing.T) {
		n3.host.Run("ip", "link", "del", DefaultTunnel)
		l.reached(n3.pod, n1.podAddress+":8080", "pod-n1", n3.podAddress)
		l.all()
	})
	direct()
	if sameButIndex := strings.Count(n3.ways(), "\n") == strings.Count(want, "\n"); !sameButIndex {
		t.Errorf("not as before:\n%s\nwas\n%s", n3.ways(), want)
	}
}

// TestDriftOnTheNodeIsRepaired: what only this node has.
func TestDriftOnTheNodeIsRepaired(t *testing.T) {
	t.Parallel()
	l := newLAN(t, routes.Auto)
	l.all()
	n3 := l.nodes[2]
	l.stream(l.nodes[0], l.nodes[1])
	const settings = "cd /proc/sys/net/ipv4; cat ip_forward conf/balsa0/forwarding conf/balsa0/route_localnet conf/balsa0/proxy_arp_pvlan " +
		"conf/balsa0/rp_filter conf/balsa0/send_redirects neigh/balsa0/proxy_delay conf/balsa-vxlan/rp_filter conf/balsa-vxlan/forwarding"
	state := func() string {
		return n3.host.Run("sh", "-c", "ip -o addr show balsa0; ip -o addr show balsa-dns; ip -o link show balsa0; bridge -d link show dev veth-pod; ip route; "+settings)
	}
	want := state()
	for _, drift := range []string{
		"ip link set veth-pod type bridge_slave isolated off",
		"ip link set veth-pod type bridge_slave hairpin off",
		"ip link set veth-pod nomaster",
		"ip link set balsa0 mtu 1200",
		"ip addr del 10.244.3.1/24 dev balsa0",
		"ip addr add 10.244.99.1/24 dev balsa0",
		"ip link set balsa0 down",
		"ip route del 10.96.0.0/16",
		"echo 0 > /proc/sys/net/ipv4/ip_forward",
		"echo 0 > /proc/sys/net/ipv4/conf/balsa0/forwarding",
		"echo 1 > /proc/sys/net/ipv4/conf/balsa-vxlan/rp_filter",
		// The kernel tells nobody of these.
		"cd /proc/sys/net/ipv4; echo 0 > conf/balsa0/route_localnet; echo 0 > conf/balsa0/proxy_arp_pvlan; echo 80 > neigh/balsa0/proxy_delay; echo 1 > conf/balsa0/send_redirects",
	} {
		n3.host.Run("sh", "-c", drift)
		var now string
		l.eventually("repaired: "+drift, func() bool {
			now = state()
			return sorted(now) == sorted(want)
		})
		l.reached(l.nodes[0].pod, n3.podAddress+":8080", "pod-n3", l.nodes[0].podAddress)
	}
	n3.host.Run("ip", "link", "del", "balsa0")
	l.reached(l.nodes[0].pod, n3.podAddress+":8080", "pod-n3", l.nodes[0].podAddress)
	l.eventually("the port is kept apart on the new bridge", func() bool {
		return strings.Contains(n3.host.Run("bridge", "-d", "link", "show", "dev", "veth-pod"), "isolated on")
	})
}

// TestStartCompletesWhatIsHalfDone: nothing is remembered but what the kernel holds, so it does not matter when a process
// before this one was killed.
func TestStartCompletesWhatIsHalfDone(t *testing.T) {
	t.Parallel()
	l := newLAN(t, routes.Auto)
	l.all()
	n3 := l.nodes[2]
	before := sorted(n3.ways())
	n3.stop()
	stream := l.stream(l.nodes[3], n3) // directly, which is right already
	n3.host.Run("sh", "-ec", `
		ip route del 10.244.1.0/24
		ip route replace 10.244.2.0/24 via 192.0.2.129 proto 98
		ip route add 10.244.66.0/24 via 192.0.2.129 proto 98
		bridge fdb del 0a:58:0a:f4:02:00 dev balsa-vxlan dst 192.0.2.12
		bridge fdb append 0a:58:0a:f4:42:00 dev balsa-vxlan dst 192.0.2.99 self permanent
		ip neigh del 10.244.1.0 dev balsa-vxlan
		ip neigh replace 10.244.66.0 lladdr 0a:58:0a:f4:42:00 dev balsa-vxlan nud permanent
		ip addr flush dev balsa-vxlan
		ip link set balsa-vxlan mtu 1300
		nft delete element ip balsa members { 192.0.2.11 }
		echo 1 > /proc/sys/net/ipv4/conf/balsa0/rp_filter`)
	n3.start(l)
	l.eventually("as before", func() bool { return sorted(n3.ways()) == before })
	stream()
	l.all()
}

// TestKilledProcessLeavesNothingHalfDone: one is killed again and again while it makes ways to many nodes.
func TestKilledProcessLeavesNothingHalfDone(t *testing.T) {
	s := newSpace(t)
	s.Run("sh", "-c", "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do if [ -e $f ]; then echo 1 > $f; fi; done")
	s.Run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "far")
	s.Run("sh", "-c", "ip addr add 192.0.2.1/25 dev eth0; ip link set eth0 up; ip link set far up; ip route add default via 192.0.2.2")
	dir := t.TempDir()
	routes := func() int { return strings.Count(s.Run("ip", "route", "show", "proto", "98"), "\n") }
	for _, enough := range []int{1, manyNodes / 4, manyNodes / 2, manyNodes - 20} {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "OVERLAY_TEST_MANY="+s.Path, "OVERLAY_TEST_DIR="+dir)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		deadline := time.After(2 * time.Minute)
		for routes() < enough {
			select {
			case <-deadline:
				t.Fatal("no routes")
			case <-time.After(time.Millisecond):
			}
		}
		_ = child.Process.Kill()
		_ = child.Wait()
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runMany(ctx, s.Path, dir)
	}()
	l := &lan{t: t}
	l.eventually("all ways are made, and each once", func() bool {
		stations := strings.Count(s.Run("bridge", "fdb", "show", "dev", DefaultTunnel), "permanent")
		neighbours := strings.Count(s.Run("ip", "neigh", "show", "dev", DefaultTunnel), "PERMANENT")
		return routes() == manyNodes && stations == manyNodes && neighbours == manyNodes
	})
	cancel()
	<-ended
}

const manyNodes = 400

func init() {
	if path := os.Getenv("OVERLAY_TEST_MANY"); path != "" {
		runMany(context.Background(), path, os.Getenv("OVERLAY_TEST_DIR"))
		os.Exit(1)
	}
}

// runMany is a node of a large cluster.
func runMany(ctx context.Context, netns, dir string) {
	client := fake.NewClientset()
	for i := range manyNodes + 1 {
		m := &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), CreationTimestamp: metav1.Unix(int64(i), 0)},
			Spec:       v1.NodeSpec{PodCIDR: fmt.Sprintf("10.%d.%d.0/24", 128+i/256, i%256)},
			Status: v1.NodeStatus{Addresses: []v1.NodeAddress{
				{Type: v1.NodeInternalIP, Address: fmt.Sprintf("198.51.%d.%d", 100+i/256, i%256)},
			}},
		}
		if i == 0 {
			m.Status.Addresses[0].Address = "192.0.2.1"
		}
		if err := client.Tracker().Add(m); err != nil {
			panic(err)
		}
	}
	m := member{name: "n0"}
	cfg := m.config(netns, dir)
	cfg.PodCIDRs[0] = netip.MustParsePrefix("10.128.0.0/9")
	factory := informers.NewSharedInformerFactory(client, 0)
	cfg.Informers = factory
	n, err := New(cfg)
	if err != nil {
		panic(err)
	}
	_ = n.Run(ctx)
	factory.Shutdown()
}

// TestRestartTouchesNoWay: a restart writes nothing about other nodes, not even an entry of the tunnel again; connections go
// on without the process.
func TestRestartTouchesNoWay(t *testing.T) {
	t.Parallel()
	l := newLAN(t, routes.Auto)
	l.all()
	n3 := l.nodes[2]
	before := sorted(n3.ways())
	stream := l.stream(n3, l.nodes[0])
	n3.stop()
	link, err := linkByName(n3.host, DefaultTunnel)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var touched atomic.Int64
	ended := make(chan error, 1)
	go func() {
		ours := func(index int) bool { return index == link.Attrs().Index }
		ended <- host.Watch(ctx, n3.host.Namespace, ours, func() { touched.Add(1) })
	}()
	n3.start(l)
	l.reached(n3.pod, l.nodes[0].podAddress+":8080", "pod-n1", n3.podAddress)
	stream()
	cancel()
	<-ended
	if n := touched.Load(); n != 0 {
		t.Errorf("the restart changed the kernel: %d messages", n)
	}
	if after := sorted(n3.ways()); after != before {
		t.Errorf("changed from\n%s\nto\n%s", before, after)
	}
}
