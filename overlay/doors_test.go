package overlay

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/balsahq/balsa/overlay/routes"
)

// TestRefusalReachesWhoeverAsks: of both families, by streams and datagrams, and leaves nothing that would lead nowhere
// once there is a backend.
func TestRefusalReachesWhoeverAsks(t *testing.T) {
	w := newDualWorld(t)
	w.service("web", "10.96.0.20", nil, nodePort(30080), func(s *v1.Service) {
		s.Spec.ClusterIPs = []string{"10.96.0.20", "fd00:96::20"}
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "dgram", Port: 80, Protocol: v1.ProtocolUDP, NodePort: 30080})
	})
	type asked struct {
		from            space
		network, target string
	}
	var all []asked
	for _, network := range []string{"tcp", "udp"} {
		for _, ip := range []string{"10.96.0.20", "[fd00:96::20]"} {
			all = append(all, asked{w.pods["a"], network, ip + ":80"}, asked{w.host, network, ip + ":80"})
		}
		for _, ip := range []string{nodeAddress, "[" + nodeAddress6 + "]"} {
			all = append(all, asked{w.outside, network, ip + ":30080"}, asked{w.pods["a"], network, ip + ":30080"}, asked{w.host, network, ip + ":30080"})
		}
	}
	for _, x := range all {
		w.eventually(fmt.Sprintf("refused by %s at %s", x.network, x.target), func() bool {
			_, _, err := x.from.ask(x.network, x.target)
			// Who sends a datagram that does not leave its own host is told that at once.
			return errors.Is(err, syscall.ECONNREFUSED) || x.network == "udp" && x.from == w.host && errors.Is(err, syscall.EPERM)
		})
	}
	w.endpoints("web", []string{"b"})
	w.endpoints6("web", "b")
	for _, x := range all {
		w.answers(x.from, x.network, x.target, "b")
	}
}

// TestAFlowFromBeforeTheServiceIsRefused: the kernel has noted that it is led nowhere.
func TestAFlowFromBeforeTheServiceIsRefused(t *testing.T) {
	w := newWorld(t)
	var c net.Conn
	if err := w.pods["a"].Do(func() (err error) {
		c, err = net.Dial("udp", "10.96.0.20:80")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	w.service("web", "10.96.0.20", nil)
	w.eventually("refused", func() bool {
		_, _, err := askOnWithin(100*time.Millisecond, c, "udp")
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	w.endpoints("web", []string{"b"})
	w.eventually("answered", func() bool {
		name, _, err := askOnWithin(100*time.Millisecond, c, "udp")
		return err == nil && name == "b"
	})
}

// TestTheNodesLoopbackIsItsOwn: a pod may send there whatever it likes; with and without a tunnel the guard is not at the
// same place.
func TestTheNodesLoopbackIsItsOwn(t *testing.T) {
	for _, mode := range []routes.Mode{routes.VXLAN, routes.HostGateway} {
		t.Run(string(mode), func(t *testing.T) {
			w := newWorld(t)
			w.stop()
			w.cfg.Mode = mode
			w.start()
			w.host.serve("secret", "127.0.0.1:9999")
			w.service("web", "10.96.0.20", []string{"b"}, nodePort(30080))
			w.answers(w.host, "tcp", "127.0.0.1:30080", "b") // whose answers come back
			pod := w.pods["a"]
			pod.Sh(`ip addr flush dev lo
				echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet
				ip route add 127.0.0.0/8 via 10.244.0.1 src %s`, podAddresses["a"])
			for _, network := range []string{"tcp", "udp"} {
				if name, _, err := pod.ask(network, "127.0.0.1:9999"); err == nil {
					t.Errorf("reached %s by %s", name, network)
				}
			}
		})
	}
}

// small counts datagrams of two bytes to a port that a host takes in, after everything else has looked at them. The tunnel
// carries none that small.
func (m *member) small(port int) (passed func() int) {
	table := fmt.Sprintf("probe-%d", port)
	m.host.Sh(`nft add table ip %[1]s
		nft add chain ip %[1]s late '{ type filter hook input priority 300 ; }'
		nft add rule ip %[1]s late udp dport %[2]d udp length 10 counter`, table, port)
	return func() (packets int) {
		if _, rest, ok := strings.Cut(m.host.Run("nft", "list", "table", "ip", table), "counter packets "); ok {
			fmt.Sscan(rest, &packets)
		}
		return packets
	}
}

// leads makes a Service for datagrams whose only endpoint is an address of the test's choice.
func (l *lan) leads(name, ip, to string, port int32) {
	l.t.Helper()
	udp, ctx := v1.ProtocolUDP, l.t.Context()
	_, err := l.client.CoreV1().Services("default").Create(ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []v1.ServicePort{{Port: 80, Protocol: udp, TargetPort: intstr.FromInt32(port)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	unnamed := ""
	_, err = l.client.DiscoveryV1().EndpointSlices("default").Create(ctx, &discovery.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discovery.LabelServiceName: name}},
		AddressType: discovery.AddressTypeIPv4, Ports: []discovery.EndpointPort{{Name: &unnamed, Port: &port, Protocol: &udp}},
		Endpoints: []discovery.Endpoint{{Addresses: []string{to}}},
	}, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
}

// TestNoServiceLeadsToTheTunnelsPort: whoever may make Services and endpoints could send to other nodes in the name of their
// own, or to their own in the name of others.
func TestNoServiceLeadsToTheTunnelsPort(t *testing.T) {
	t.Parallel()
	const open = 9999
	l := newLAN(t, routes.Auto)
	l.all()
	n1, n3 := l.nodes[0], l.nodes[2]
	seen := map[string]func() int{
		"10.96.0.30": n3.small(DefaultVXLANPort), "10.96.0.31": n1.small(DefaultVXLANPort),
		"10.96.0.40": n3.small(open), "10.96.0.41": n1.small(open),
	}
	l.leads("a", "10.96.0.30", n3.address, DefaultVXLANPort)
	l.leads("b", "10.96.0.31", n1.address, DefaultVXLANPort)
	l.leads("c", "10.96.0.40", n3.address, open)
	l.leads("d", "10.96.0.41", n1.address, open)
	l.eventually("the Services are in the kernel", func() bool {
		rules := n1.host.Run("nft", "list", "table", "ip", "balsa")
		for ip := range seen {
			if !strings.Contains(rules, ip+" . udp . 80") {
				return false
			}
		}
		return true
	})
	for ip := range seen {
		n1.pod.Sh("for i in 1 2 3; do bash -c 'echo x > /dev/udp/%s/80'; done", ip)
	}
	l.eventually("datagrams come to another port", func() bool { return seen["10.96.0.40"]() == 3 && seen["10.96.0.41"]() == 3 })
	for _, ip := range []string{"10.96.0.30", "10.96.0.31"} {
		if n := seen[ip](); n > 0 {
			t.Errorf("%d datagrams to %s came to the tunnel's port", n, ip)
		}
	}
}

// TestTunnelsPortTakesNoBroadcast of a stranger on the link.
func TestTunnelsPortTakesNoBroadcast(t *testing.T) {
	t.Parallel()
	const open = 9999
	l := newLAN(t, routes.Auto)
	n1 := l.nodes[0]
	closed, control := n1.small(DefaultVXLANPort), n1.small(open)
	err := l.router.Do(func() error {
		c, err := net.ListenPacket("udp4", ":0") // Go's sockets may broadcast
		if err != nil {
			return err
		}
		defer c.Close()
		for _, port := range []int{DefaultVXLANPort, open} {
			if _, err := c.WriteTo([]byte("x\n"), &net.UDPAddr{IP: net.IPv4(192, 0, 2, 127), Port: port}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	l.eventually("a broadcast comes to another port", func() bool { return control() == 1 })
	if n := closed(); n > 0 {
		t.Errorf("%d broadcasts came to the tunnel's port", n)
	}
}
