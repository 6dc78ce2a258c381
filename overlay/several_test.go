package overlay

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/host"
	"github.com/balsahq/balsa/overlay/routes"
)

func TestAllPairs(t *testing.T) {
	for _, mode := range []routes.Mode{routes.Auto, routes.VXLAN, routes.UDP, routes.WireGuard} {
		t.Run(string(mode), func(t *testing.T) {
			l := newLAN(t, mode)
			l.all()
			table := l.nodes[0].host.Run("ip", "route")
			if direct := strings.Contains(table, "10.244.2.0/24 via 192.0.2.12 dev eth0"); direct != (mode == routes.Auto) {
				t.Errorf("the neighbour is reached directly: %v\n%s", direct, table)
			}
			for i, backend := range l.nodes {
				ip, port := fmt.Sprintf("10.96.0.%d", 20+i), 30080+i
				l.service("web"+backend.name, ip, int32(port), backend)
				for _, m := range l.nodes {
					l.reached(m.pod, ip+":80", "pod-"+backend.name)
					l.reached(m.host, ip+":80", "pod-"+backend.name)
					l.reached(l.router, fmt.Sprintf("%s:%d", m.address, port), "pod-"+backend.name)
					l.reached(m.pod, fmt.Sprintf("%s:%d", l.nodes[0].address, port), "pod-"+backend.name)
				}
			}
			if _, seen, err := l.nodes[0].pod.ask("tcp", "10.96.0.22:80"); err != nil || seen != l.nodes[0].podAddress {
				t.Errorf("a backend elsewhere saw %q (%v), want the pod itself", seen, err)
			}
			l.largePackets()
		})
	}
}

// TestAllPairsOfBothFamilies: and two pods of one node, kept apart on the bridge, are led to each other by the host.
func TestAllPairsOfBothFamilies(t *testing.T) {
	for _, mode := range []routes.Mode{routes.Auto, routes.UDP, routes.WireGuard} {
		t.Run(string(mode), func(t *testing.T) {
			l := newDualLAN(t, mode)
			l.all()
			l.largePackets()
			m, second := l.nodes[0], newSpace(t)
			m.plugInto(t, second, "veth-two", "10.244.1.3", "fd00:244:0:1::3")
			l.reached(second, "["+m.podAddress6+"]:8080", "pod-n1", "fd00:244:0:1::3")
			// The host could drop what it leads: nothing goes past it.
			m.host.Run("nft", "add table ip6 probe")
			m.host.Run("nft", "add chain ip6 probe pass { type filter hook forward priority 0 ; }")
			m.host.Run("nft", "add rule ip6 probe pass ip6 saddr fd00:244:0:1::3 drop")
			if who, _, err := second.ask("tcp", "["+m.podAddress6+"]:8080"); err == nil {
				t.Errorf("%s was reached past the host's rules", who)
			}
		})
	}
}

// sink counts what a connection brings and tells it.
func (s space) sink(address string) {
	s.T.Helper()
	var tcp net.Listener
	if err := s.Do(func() (err error) {
		tcp, err = net.Listen("tcp", address)
		return err
	}); err != nil {
		s.T.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			n, _ := io.Copy(io.Discard, c)
			fmt.Fprint(c, n)
			c.Close()
		}
	}()
	s.T.Cleanup(func() {
		tcp.Close()
		<-done
	})
}

// largePackets has pods send as much at once as their links take: where the way takes less, they must learn it.
func (l *lan) largePackets() {
	l.t.Helper()
	const size = 1 << 20
	for _, m := range l.nodes {
		m.pod.sink(m.podAddress + ":8081")
		if l.dual {
			m.pod.sink("[" + m.podAddress6 + "]:8081")
		}
	}
	for _, a := range l.nodes {
		for _, b := range l.nodes {
			addresses := []string{b.podAddress + ":8081"}
			if l.dual {
				addresses = append(addresses, "["+b.podAddress6+"]:8081")
			}
			for _, to := range addresses {
				if answer, err := a.pod.pour(to, size); answer != fmt.Sprint(size) {
					l.t.Errorf("%s to %s at %s: %q of %d bytes arrived (%v)", a.name, b.name, to, answer, size, err)
				}
			}
		}
	}
}

// pour sends to a sink, and returns what that says.
func (s space) pour(address string, size int) (answer string, err error) {
	var c net.Conn
	if err := s.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", address, 30*time.Second)
		return err
	}); err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, failed := c.Write(make([]byte, size))
	_ = c.(*net.TCPConn).CloseWrite()
	text, err := io.ReadAll(c)
	return string(text), errors.Join(failed, err)
}

func TestTunnelDevice(t *testing.T) {
	t.Parallel()
	l := newLAN(t, routes.Auto)
	m := l.nodes[2]
	details := m.host.Run("ip", "-d", "-o", "link", "show", DefaultTunnel)
	for _, want := range []string{"mtu 1450", "id 98 ", "dstport 8472", "nolearning", "local " + m.address, "0a:58:0a:f4:03:00"} {
		if !strings.Contains(details, want) {
			t.Errorf("no %q in %s", want, details)
		}
	}
	offload := func() bool {
		var on uint32
		if err := m.host.Do(func() (err error) {
			on, err = host.TxChecksum(DefaultTunnel)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return on != 0
	}
	if offload() {
		t.Error("checksums are left to the link below")
	}
	conflist := m.host.Run("cat", filepath.Join(m.cfg.CNIConfDir, ConflistName))
	if !strings.Contains(conflist, `"mtu": 1450`) {
		t.Errorf("pods' MTU: %s", conflist)
	}
	for _, wanted := range []bool{true, false} {
		m.stop()
		m.cfg.Offload = wanted
		m.start(l)
		l.eventually(fmt.Sprintf("offload is %t", wanted), func() bool { return offload() == wanted })
		l.all()
	}
}

// TestTunnelsPacketsAreNoConnections: what carries pods' packets between nodes takes no room among connections, and no time
// for looking it up.
func TestTunnelsPacketsAreNoConnections(t *testing.T) {
	t.Parallel()
	l := newLAN(t, routes.VXLAN)
	l.all()
	for _, m := range l.nodes { // before they knew each other, packets of the tunnel were as all others
		if err := m.host.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
			t.Fatal(err)
		}
	}
	l.all()
	for _, m := range l.nodes {
		var flows []*netlink.ConntrackFlow
		if err := m.host.Do(func() (err error) {
			flows, err = netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		inside := 0
		for _, f := range flows {
			if f.Forward.DstPort == 8080 {
				inside++
			}
			if f.Forward.Protocol == unix.IPPROTO_UDP && f.Forward.DstPort == DefaultVXLANPort {
				t.Errorf("%s: %s", m.name, f)
			}
		}
		if inside == 0 {
			t.Errorf("%s: pods' connections are not listed, so this test cannot fail", m.name)
		}
	}
}

// TestTunnelPortIsClosed: the port takes packets of members alone and of each only its own pods', and pods cannot pose as their
// node.
func TestTunnelPortIsClosed(t *testing.T) {
	t.Parallel()
	l := newLAN(t, routes.Auto)
	n1, n3 := l.nodes[0], l.nodes[2]
	seen := atomic.Int64{}
	n3.host.Run("nft", "add table ip probe")
	n3.host.Run("nft", "add chain ip probe late { type filter hook input priority 100 ; }")
	n3.host.Run("nft", "add rule ip probe late udp dport 8472 udp length 50 counter") // what send sends, and no packet of the tunnel
	passed := func() int64 {
		var packets int64
		text := n3.host.Run("nft", "list chain ip probe late")
		if _, rest, ok := strings.Cut(text, "counter packets "); ok {
			fmt.Sscan(rest, &packets)
		}
		return packets
	}
	send := func(from space, source string) {
		t.Helper()
		packet := make([]byte, 8+14+20) // the headers of VXLAN, Ethernet and IPv4
		packet[0], packet[6], packet[20], packet[22] = 0x08, 1, 0x08, 0x45
		copy(packet[34:], netip.MustParseAddr(source).AsSlice())
		if err := from.Do(func() error {
			c, err := net.Dial("udp", n3.address+":8472")
			if err != nil {
				return err
			}
			defer c.Close()
			for range 3 {
				_, err = c.Write(packet)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	const own, others = "10.244.1.7", "10.244.2.7" // of n1's pods, of n2's
	seen.Store(passed())
	send(l.router, own)
	send(n1.pod, own)
	send(n3.pod, own)
	send(n1.host, others)
	if now := passed(); now != seen.Load() {
		t.Errorf("%d packets of strangers passed", now-seen.Load())
	}
	send(n1.host, own) // this probe can fail
	l.eventually("a member's packet passes", func() bool { return passed() > seen.Load() })
}

// sorted orders lines, as the kernel does not.
func sorted(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		for j := i; j > 0 && lines[j] < lines[j-1]; j-- {
			lines[j], lines[j-1] = lines[j-1], lines[j]
		}
	}
	return strings.Join(lines, "\n")
}

func TestNodesComeGoAndMove(t *testing.T) {
	t.Parallel()
	l := newLAN(t, routes.Auto)
	l.all()
	n1, n2, n3 := l.nodes[0], l.nodes[1], l.nodes[2]

	// A node changes its pod network.
	n2.pods, n2.podAddress = netip.MustParsePrefix("10.244.42.0/24"), "10.244.42.2"
	n2.pod.Run("ip", "addr", "flush", "dev", "eth0")
	l.announce(n2)
	n2.pod.Run("ip", "addr", "add", n2.podAddress+"/24", "dev", "eth0")
	l.eventually("the bridge has moved", func() bool {
		return strings.Contains(n2.host.Run("ip", "addr", "show", DefaultBridge), "10.244.42.1/24")
	})
	n2.pod.Run("ip", "route", "add", "default", "via", "10.244.42.1")
	n2.pod.serve("pod-n2", n2.podAddress+":8080")
	l.all()
	for _, m := range []*member{n1, n3} {
		if ways := m.ways(); strings.Contains(ways, "10.244.2.0") {
			t.Errorf("%s still knows the former network:\n%s", m.name, ways)
		}
	}

	// A node changes its address within its subnet.
	n3.host.Run("ip", "addr", "del", n3.address+"/25", "dev", "eth0")
	n3.host.Run("ip", "addr", "add", "192.0.2.150/25", "dev", "eth0")
	n3.host.Run("ip", "route", "add", "default", "via", "192.0.2.129")
	n3.address = "192.0.2.150"
	l.announce(n3)
	l.all()
	if ways := n1.ways(); strings.Contains(ways, "192.0.2.140") {
		t.Errorf("n1 still knows the former address:\n%s", ways)
	}

	// A node goes.
	if err := l.client.CoreV1().Nodes().Delete(t.Context(), "n3", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*member{n1, n2} {
		l.eventually("n3 forgotten on "+m.name, func() bool {
			ways := m.ways()
			return !strings.Contains(ways, "10.244.3.") && !strings.Contains(ways, n3.address)
		})
	}
	l.reached(n1.pod, n2.podAddress+":8080", "pod-n2", n1.podAddress)

	// A node comes.
	l.nodes = []*member{n1, n2, l.nodes[3], l.plugNode(5, "192.0.2.15")}
	l.announce(l.nodes[3])
	l.nodes[3].start(l)
	l.nodes[3].plugPod(t)
	l.all()
}

// TestWhatTwoNodesClaimStaysWithTheFirst: whoever comes second with the network or the address of a node is told of, both by
// name, and nothing changes for the others.
func TestWhatTwoNodesClaimStaysWithTheFirst(t *testing.T) {
	t.Parallel()
	l := newLAN(t, routes.Auto)
	l.all()
	n1, n2 := l.nodes[0], l.nodes[1]
	before := []string{sorted(n1.ways()), sorted(l.nodes[2].ways())}
	stream := l.stream(n1, n2)
	claim := func(number int, change func(m *member)) {
		m := l.plugNode(number, fmt.Sprintf("192.0.2.1%d", number))
		change(m)
		object := m.object()
		object.CreationTimestamp = metav1.Unix(1000, 0)
		if _, err := l.client.CoreV1().Nodes().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	claim(8, func(m *member) { m.address = n2.address })
	claim(9, func(m *member) { m.pods = n2.pods })
	l.eventually("both are told of", func() bool {
		return l.log.contains("on=n1", "node n8 has the address 192.0.2.12 of node n2") &&
			l.log.contains("on=n1", "node n9 has pod network 10.244.2.0/24, which overlaps that of node n2")
	})
	l.service("later", "10.96.0.30", 30090, n2) // what is seen after this was done with the nodes known
	l.reached(n1.pod, "10.96.0.30:80", "pod-n2")
	stream()
	l.all()
	for i, m := range []*member{n1, l.nodes[2]} {
		if after := sorted(m.ways()); after != before[i] {
			t.Errorf("%s: changed from\n%s\nto\n%s", m.name, before[i], after)
		}
	}
}

func TestCleanupLeavesNoWay(t *testing.T) {
	t.Parallel()
	l := newLAN(t, routes.Auto)
	l.all()
	for _, m := range l.nodes {
		m.stop()
		for range 2 {
			if err := Cleanup(Config{NetNS: m.host.Path, CNIConfDir: m.cfg.CNIConfDir, StateDir: m.cfg.StateDir}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := linkByName(m.host, DefaultTunnel); err == nil {
			t.Errorf("%s: the tunnel is left", m.name)
		}
		if routes := m.host.Run("ip", "route"); strings.Contains(routes, "10.") {
			t.Errorf("%s: routes left: %s", m.name, routes)
		}
		if tables := strings.TrimSpace(m.host.Run("nft", "list", "tables")); tables != "" {
			t.Errorf("%s: tables left: %s", m.name, tables)
		}
	}
}
