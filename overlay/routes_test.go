package overlay

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/balsahq/balsa/overlay/routes"
)

// TestNarrowWay: where the way to some nodes takes less than the links, packets to these get smaller, and to no others;
// whether routers say what they drop or not.
func TestNarrowWay(t *testing.T) {
	for name, tt := range map[string]struct {
		mode   routes.Mode
		narrow string // has the router let packets of 1400 bytes through
		mtu    string
	}{
		"told":              {routes.Auto, "ip link set s2 mtu 1400", "1350"},
		"silent":            {routes.Auto, "nft insert rule ip guard pass meta length gt 1400 drop", "1350"},
		"silent, by UDP":    {routes.UDP, "nft insert rule ip guard pass meta length gt 1400 drop", "1372"},
		"cut up by routers": {routes.Auto, "ip link set s2 mtu 1400; nft add chain ip guard out '{ type filter hook output priority 0 ; }'; nft add rule ip guard out icmp type destination-unreachable drop", "1350"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newSubnets(t, tt.mode)
			l.router.Run("sh", "-c", tt.narrow)
			l.populate()
			n1 := l.nodes[0]
			route := func(pods string) string { return n1.host.Run("ip", "route", "show", pods) }
			l.eventually("packets to n3 are smaller", func() bool {
				return strings.Contains(route("10.244.3.0/24"), "mtu "+tt.mtu+" ") && strings.Contains(route("10.244.4.0/24"), "mtu "+tt.mtu+" ")
			})
			l.eventually("packets to n2 are not", func() bool { return !strings.Contains(route("10.244.2.0/24"), "mtu") })
			l.largePackets()
		})
	}
}

// TestTooNarrowWay is told of, with the node's name; the way heals when it is looked at anew.
func TestTooNarrowWay(t *testing.T) {
	t.Parallel()
	l := newSubnets(t, routes.Auto)
	l.router.Run("nft", "insert", "rule", "ip", "guard", "pass", "meta length gt 1300 ip daddr 192.0.2.140 drop")
	l.populate()
	n1 := l.nodes[0]
	l.eventually("the error names the node", func() bool {
		return l.log.contains("level=ERROR", "on=n1", "the path to node n3 at 192.0.2.140 takes packets of 1300 bytes")
	})
	l.eventually("its packets are smaller", func() bool {
		return strings.Contains(n1.host.Run("ip", "route", "show", "10.244.3.0/24"), "mtu 1250")
	})
	l.eventually("those to n4 are not", func() bool {
		return !strings.Contains(n1.host.Run("ip", "route", "show", "10.244.4.0/24"), "mtu")
	})
	l.all()
	l.router.Run("nft", "flush", "chain", "ip", "guard", "pass")
	n1.stop() // or it would look at this way again after twenty seconds
	n1.start(l)
	l.eventually("packets are as large as before", func() bool {
		return !strings.Contains(n1.host.Run("ip", "route", "show", "10.244.3.0/24"), "mtu")
	})
}

// TestRelayBelievesNobody: what comes in must be a member's, and from its own pods to pods of this node.
func TestRelayBelievesNobody(t *testing.T) {
	t.Parallel()
	l := newLAN(t, routes.UDP)
	l.all()
	n1, n2, n3 := l.nodes[0], l.nodes[1], l.nodes[2]
	if ways := n1.host.Run("ip", "route", "show", "10.244.2.0/24"); !strings.Contains(ways, DefaultRelay) {
		t.Fatalf("not by the relay: %s", ways)
	}
	n3.pod.Run("nft", "add table ip probe")
	n3.pod.Run("nft", "add chain ip probe in { type filter hook input priority 0 ; }")
	n3.pod.Run("nft", "add rule ip probe in udp dport 5353 counter")
	send := func(from space, to, source, target string) {
		t.Helper()
		err := from.Do(func() error {
			c, err := net.Dial("udp", to+":8285")
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write(datagram(source, target, 5353))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	arrived := func() int {
		var packets int
		_, rest, _ := strings.Cut(n3.pod.Run("nft", "list", "chain", "ip", "probe", "in"), "counter packets ")
		fmt.Sscan(rest, &packets)
		return packets
	}
	for range 3 {
		send(l.router, n3.address, n1.podAddress, n3.podAddress)   // no member
		send(n1.pod, n3.address, n1.podAddress, n3.podAddress)     // a pod
		send(n1.host, n3.address, n2.podAddress, n3.podAddress)    // in the name of another node's pod
		send(n1.host, n3.address, "192.0.2.11", n3.podAddress)     // in the name of no pod
		send(n1.host, n3.address, n1.podAddress, "192.0.2.141")    // through n3 to elsewhere
		send(n1.host, n3.address, n3.podAddress, n3.podAddress)    // in the name of the pod itself
		send(n1.host, n3.address, n1.podAddress, n2.podAddress)    // to another node's pod
		send(n1.host, n3.address, "10.244.1.2", "255.255.255.255") // to everybody
	}
	send(n1.host, n3.address, n1.podAddress, n3.podAddress) // the probe can fail
	l.eventually("a member's packet arrives", func() bool { return arrived() > 0 })
	if n := arrived(); n != 1 {
		t.Errorf("%d packets arrived, one should have", n)
	}
	n3.host.Run("ip", "link", "del", DefaultRelay)
	l.all()
}

// datagram is an IPv4 packet with a UDP datagram of nothing.
func datagram(from, to string, port uint16) []byte {
	b := make([]byte, 28)
	b[0], b[3], b[8], b[9] = 0x45, 28, 64, 17
	copy(b[12:], net.ParseIP(from).To4())
	copy(b[16:], net.ParseIP(to).To4())
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	sum = ^(sum>>16 + sum&0xffff)
	b[10], b[11] = byte(sum>>8), byte(sum)
	b[20], b[22], b[23], b[25] = 1, byte(port>>8), byte(port), 8
	return b
}

// TestAnotherPluginAttachesPods: there is no bridge, no way and no CNI configuration of ours, but Services are reached.
func TestAnotherPluginAttachesPods(t *testing.T) {
	t.Parallel()
	l := newSubnets(t, routes.Auto)
	m, other := l.plugNode(1, "192.0.2.11"), l.plugNode(2, "192.0.2.12")
	l.nodes = []*member{m, other}
	l.announce(m)
	l.announce(other)
	m.start(l) // there may be something of ours from before
	own := filepath.Join(m.cfg.CNIConfDir, ConflistName)
	if _, err := os.Stat(own); err != nil {
		t.Fatal(err)
	}
	m.stop()
	if err := os.WriteFile(filepath.Join(m.cfg.CNIConfDir, "10-other.conflist"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.host.Run("ip", "link", "del", DefaultBridge)
	m.cfg.ForeignPods = true
	m.start(l)
	if _, err := os.Stat(own); !os.IsNotExist(err) {
		t.Errorf("our CNI configuration is there: %v", err)
	}
	if _, err := linkByName(m.host, DefaultBridge); err == nil {
		t.Error("there is a bridge of ours")
	}
	if routes := m.host.Run("ip", "route", "show", "proto", "98"); routes != "" {
		t.Errorf("there are ways of ours: %s", routes)
	}
	m.host.Run("sh", "-c", "ip link add cni0 type bridge; ip addr add 10.244.1.1/24 dev cni0; ip link set cni0 up")
	cable(t, m.host, m.pod, "veth-pod", "eth0", "", m.podAddress+"/24")
	m.host.Run("ip", "link", "set", "veth-pod", "master", "cni0")
	m.pod.Run("ip", "route", "add", "default", "via", "10.244.1.1")
	m.pod.serve("pod-n1", m.podAddress+":8080")
	l.service("web", "10.96.0.20", 30080, m)
	second := newSpace(t)
	cable(t, m.host, second, "veth-two", "eth0", "", "10.244.1.3/24")
	m.host.Run("ip", "link", "set", "veth-two", "master", "cni0")
	second.Run("ip", "route", "add", "default", "via", "10.244.1.1")
	l.reached(m.host, "10.96.0.20:80", "pod-n1")
	l.reached(l.router, "192.0.2.11:30080", "pod-n1")
	if text := m.host.Run("nft", "list", "table", "ip", "balsa"); strings.Contains(text, "8472") {
		t.Errorf("a tunnel's port is guarded that is another's:\n%s", text)
	}
}

// TestBothFamiliesWithThePlugins attaches two pods of one node as a runtime does; they talk in each family, by way of the
// host.
func TestBothFamiliesWithThePlugins(t *testing.T) {
	l := newSubnets(t, routes.Auto)
	l.dual = true
	m := l.plugNode(1, "192.0.2.11")
	l.announce(m)
	m.start(l)
	bin := plugins(t)
	attach := func(id string, pod space) {
		cmd := exec.Command("nsenter", "--net="+m.host.Path, os.Args[0])
		cmd.Env = append(os.Environ(), "OVERLAY_TEST_ATTACH=attach", "CONF="+m.cfg.CNIConfDir, "BIN="+bin, "ID="+id, "NS="+pod.Path)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	one, two := newSpace(t), newSpace(t)
	attach("both-one", one)
	attach("both-two", two)
	routes := one.Run("ip", "-6", "route")
	for _, want := range []string{"default via fd00:244:0:1::1", "fd00:244:0:1:8000::/65 via fd00:244:0:1::1", "fd00:244:0:1::/65 via fd00:244:0:1::1"} {
		if !strings.Contains(routes, want) {
			t.Errorf("no route %s in\n%s", want, routes)
		}
	}
	for _, address := range strings.Fields(two.Run("sh", "-c", "ip -o addr show dev eth0 scope global | awk '{print $4}'")) {
		ip := netip.MustParsePrefix(address).Addr().String()
		two.serve("two", net.JoinHostPort(ip, "8080"))
		l.reached(one, net.JoinHostPort(ip, "8080"), "two")
		l.reached(m.host, net.JoinHostPort(ip, "8080"), "two")
	}
	if ports := m.host.Run("bridge", "-d", "link"); strings.Count(ports, "isolated on") != 2 {
		t.Errorf("ports are not kept apart:\n%s", ports)
	}
}
