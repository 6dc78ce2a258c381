package overlay

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

const nodeAddress6, outsideAddress6 = "2001:db8::1", "2001:db8::2"

var podAddresses6 = map[string]string{"a": "fd00:10::11", "b": "fd00:10::12", "c": "fd00:10::13"}

// newDualWorld is a node whose pods have addresses of both families.
func newDualWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, host: newSpace(t), outside: newSpace(t), pods: map[string]space{}}
	cable(t, w.host, w.outside, "eth0", "eth0", nodeAddress+"/24", outsideAddress+"/24")
	w.host.Run("ip", "addr", "add", nodeAddress6+"/64", "dev", "eth0", "nodad")
	w.outside.Run("ip", "addr", "add", outsideAddress6+"/64", "dev", "eth0", "nodad")
	w.client = fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"},
		Spec: v1.NodeSpec{PodCIDR: "10.244.0.0/24", PodCIDRs: []string{"10.244.0.0/24", "fd00:10::/64"}}})
	dir := t.TempDir()
	w.cfg = Config{
		NodeName: "node", NetNS: w.host.Path, CNIConfDir: filepath.Join(dir, "net.d"), StateDir: filepath.Join(dir, "state"),
		PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10::/48")},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")},
		DNS:          []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")}, ResolvConf: "/dev/null",
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	w.start()
	t.Cleanup(func() { w.stop() })
	for name, address := range podAddresses {
		w.pods[name] = newSpace(t)
		w.plug(name, address)
		// As CNI would: the way to neighbours is through the node, too.
		w.pods[name].Run("ip", "addr", "add", podAddresses6[name]+"/128", "dev", "eth0", "nodad")
		w.pods[name].Run("ip", "route", "add", "fd00:10::1", "dev", "eth0")
		w.pods[name].Run("ip", "route", "add", "default", "via", "fd00:10::1")
		w.pods[name].serve(name, address+":8080")
		w.pods[name].serve(name, "["+podAddresses6[name]+"]:8080")
	}
	return w
}

// endpoints6 gives a service made by service endpoints of IPv6.
func (w *world) endpoints6(name string, pods ...string) {
	w.t.Helper()
	s := slice(name, pods)
	s.Name, s.AddressType = name+"-6", discovery.AddressTypeIPv6
	for i := range s.Endpoints {
		s.Endpoints[i].Addresses = []string{podAddresses6[pods[i]]}
	}
	if _, err := w.client.DiscoveryV1().EndpointSlices("default").Create(w.t.Context(), s, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func TestServicesOfBothFamilies(t *testing.T) {
	w := newDualWorld(t)
	w.service("web", "10.96.0.20", []string{"b", "c"}, nodePort(30080), func(s *v1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.20", "fd00:96::20"} })
	w.endpoints6("web", "b", "c")
	w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b", "c")
	w.answers(w.pods["a"], "tcp", "[fd00:96::20]:80", "b", "c")
	if _, seen, err := w.pods["a"].ask("tcp", "[fd00:96::20]:80"); err != nil || !strings.HasPrefix(seen, "fd00:10::11") {
		t.Errorf("the backend saw %q (%v), want the pod itself", seen, err)
	}
	w.answers(w.host, "tcp", "[fd00:96::20]:80", "b", "c")
	w.answers(w.outside, "tcp", "["+nodeAddress6+"]:30080", "b", "c")
	if _, seen, err := w.outside.ask("tcp", "["+nodeAddress6+"]:30080"); err != nil || strings.HasPrefix(seen, outsideAddress6) {
		t.Errorf("the backend saw %q (%v), want it hidden", seen, err)
	}
	w.service("own", "10.96.0.21", nil, func(s *v1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.21", "fd00:96::21"} })
	w.endpoints6("own", "b")
	w.answers(w.pods["b"], "tcp", "[fd00:96::21]:80", "b") // itself
	w.answers(w.pods["a"], "udp", "[fd00:96::21]:80", "b")
	w.eventually("refused in IPv4, where there are no endpoints", func() bool {
		_, _, err := w.pods["a"].ask("tcp", "10.96.0.21:80")
		return errors.Is(err, unix.ECONNREFUSED)
	})
	w.eventually("names are answered at the IPv6 address", func() bool {
		var c net.Conn
		if err := w.pods["a"].Do(func() (err error) {
			c, err = net.DialTimeout("udp", "[fd00:96::a]:53", time.Second)
			return err
		}); err != nil {
			return false
		}
		defer c.Close()
		m := new(dns.Msg)
		m.SetQuestion("web.default.svc.cluster.local.", dns.TypeAAAA)
		answer, _, err := (&dns.Client{Timeout: time.Second}).ExchangeWithConn(m, &dns.Conn{Conn: c})
		return err == nil && len(answer.Answer) == 1
	})
}

// initChunk is a packet that opens an SCTP association (RFC 9260, 3.3.2).
func initChunk(from, to uint16) []byte {
	p := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
	p = append(p, make([]byte, 8)...) // verification tag, checksum
	p = append(p, 1, 0, 0, 20, 0, 0, 0, 7, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 9)
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}

// TestSCTP sends packets itself: not every kernel has the protocol, and a node leads it on without having it.
func TestSCTP(t *testing.T) {
	w := newWorld(t)
	w.service("web", "10.96.0.20", nil, func(s *v1.Service) {
		s.Spec.Ports = []v1.ServicePort{{Name: "web", Port: 80, Protocol: v1.ProtocolSCTP}, {Name: "web", Port: 80, Protocol: v1.ProtocolTCP}}
	})
	s, sctp := slice("web", []string{"b"}), v1.ProtocolSCTP
	s.Ports = s.Ports[:1]
	s.Ports[0].Protocol = &sctp
	if _, err := w.client.DiscoveryV1().EndpointSlices("default").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	raw := func(from space) net.PacketConn {
		var c net.PacketConn
		if err := from.Do(func() (err error) {
			c, err = net.ListenPacket("ip4:132", "0.0.0.0")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	client, server := raw(w.pods["a"]), raw(w.pods["b"])
	port := uint16(5000)
	w.eventually("the packet at the backend, at its port, with a good checksum", func() bool {
		port++ // a new connection each time
		if _, err := client.WriteTo(initChunk(port, 80), &net.IPAddr{IP: net.ParseIP("10.96.0.20")}); err != nil {
			t.Fatal(err)
		}
		_ = server.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		got := make([]byte, 100)
		n, from, err := server.ReadFrom(got)
		return err == nil && from.String() == podAddresses["a"] && string(got[:n]) == string(initChunk(binary.BigEndian.Uint16(got), 8080))
	})
	if _, _, err := w.pods["a"].ask("tcp", "10.96.0.20:80"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("TCP, which has no endpoints: %v", err)
	}
}

func TestMalformedServicesHarmNoOther(t *testing.T) {
	w := newWorld(t)
	w.service("bad", "999.1.1.1", []string{"127.0.0.1", "169.254.169.254", "10.96.0.20"}, func(s *v1.Service) {
		s.Spec.ExternalIPs, s.Spec.LoadBalancerSourceRanges = []string{"127.0.0.1", "::", "x"}, []string{"nowhere"}
		s.Spec.Ports[0].Port = 1 << 20
	})
	w.service("worse", "10.96.0.30", []string{"127.0.0.1", "169.254.169.254", "10.96.0.20"})
	w.service("web", "10.96.0.20", []string{"b"})
	w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b")
	w.eventually("no way around what protects the node", func() bool {
		_, _, err := w.pods["a"].ask("tcp", "10.96.0.30:80")
		return errors.Is(err, unix.ECONNREFUSED)
	})
}

func TestTheLoadBalancersClientIsSeenUnderPolicyLocal(t *testing.T) {
	w := newWorld(t)
	w.outside.Run("ip", "route", "add", "10.244.0.0/24", "via", nodeAddress)
	w.outside.Run("ip", "route", "add", "198.51.100.0/24", "via", nodeAddress)
	w.service("web", "10.96.0.20", []string{"b", "10.244.7.7"}, func(s *v1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = v1.ServiceTypeLoadBalancer, v1.ServiceExternalTrafficPolicyLocal
		s.Spec.LoadBalancerSourceRanges = []string{outsideAddress + "/32"}
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "198.51.100.2"}}
	})
	w.answers(w.outside, "tcp", "198.51.100.2:80", "b")
	if _, seen, err := w.outside.ask("tcp", "198.51.100.2:80"); err != nil || seen != outsideAddress {
		t.Errorf("the backend saw %q (%v), want the client", seen, err)
	}
}

func TestHintsFollowTheNodesZone(t *testing.T) {
	w := newWorld(t)
	w.service("web", "10.96.0.20", []string{"b", "c"})
	s := slice("web", []string{"b", "c"})
	for i, zone := range []string{"east", "west"} {
		s.Endpoints[i].Hints = &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: zone}}}
	}
	if _, err := w.client.DiscoveryV1().EndpointSlices("default").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b", "c") // the node has no zone
	for zone, want := range map[string]string{"east": "b", "west": "c"} {
		node, err := w.client.CoreV1().Nodes().Get(t.Context(), "node", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		node.Labels = map[string]string{v1.LabelTopologyZone: zone}
		if _, err := w.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.answers(w.pods["a"], "tcp", "10.96.0.20:80", want)
	}
}

func TestASliceMayChangeItsService(t *testing.T) {
	w := newWorld(t)
	w.service("one", "10.96.0.20", []string{"b"})
	w.service("two", "10.96.0.21", nil)
	w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b")
	s := slice("one", []string{"b"})
	s.Labels[discovery.LabelServiceName] = "two"
	if _, err := w.client.DiscoveryV1().EndpointSlices("default").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.answers(w.pods["a"], "tcp", "10.96.0.21:80", "b")
	w.eventually("the first is refused", func() bool {
		_, _, err := w.pods["a"].ask("tcp", "10.96.0.20:80")
		return errors.Is(err, unix.ECONNREFUSED)
	})
}

func TestPatienceWithThoseWhoChangeOurTable(t *testing.T) {
	var p repairLimit
	log, now := slog.New(slog.NewTextHandler(io.Discard, nil)), time.Unix(0, 0)
	repaired := 0
	for range 600 { // ten minutes of somebody changing it each second
		work := work{dirty: rulesDirty | linksDirty, program: "other (7)"}
		if p.postpone(&work, now, log) == 0 {
			repaired++
		} else if work.dirty != linksDirty {
			t.Fatalf("what else was to do is %b", work.dirty)
		}
		now = now.Add(time.Second)
	}
	if repaired < 25 || repaired > 50 {
		t.Errorf("put right %d times in ten minutes", repaired)
	}
	now = now.Add(2 * repairsWithin)
	if work := (work{dirty: rulesDirty, program: "other (7)"}); p.postpone(&work, now, log) != 0 {
		t.Error("after a while of peace it is not put right at once")
	}
}

func TestClientStaysWhenOthersComeAndGo(t *testing.T) {
	w := newDualWorld(t)
	w.service("web", "10.96.0.20", []string{"a", "b", "c"}, nodePort(30080), func(s *v1.Service) {
		s.Spec.ClusterIPs, s.Spec.SessionAffinity = []string{"10.96.0.20", "fd00:96::20"}, v1.ServiceAffinityClientIP
	})
	w.endpoints6("web", "a", "b", "c")
	for _, address := range []string{"10.96.0.20:80", "[fd00:96::20]:80", nodeAddress + ":30080"} {
		var first string
		w.eventually("an answer from "+address, func() (ok bool) {
			name, _, err := w.outside.ask("tcp", nodeAddress+":30080")
			if address != nodeAddress+":30080" {
				name, _, err = w.pods["a"].ask("tcp", address)
			}
			first = name
			return err == nil
		})
		from := w.pods["a"]
		if address == nodeAddress+":30080" {
			from = w.outside
		}
		for _, rest := range [][]string{{"a", "b", "c"}, {"b", "c"}, {"a", "c"}, {"a", "b"}, {"a", "b", "c"}} {
			if !slices.Contains(rest, first) {
				continue
			}
			w.endpoints("web", rest)
			s := slice("web", rest)
			s.Name, s.AddressType = "web-6", discovery.AddressTypeIPv6
			for i := range s.Endpoints {
				s.Endpoints[i].Addresses = []string{podAddresses6[rest[i]]}
			}
			if _, err := w.client.DiscoveryV1().EndpointSlices("default").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			w.eventually("the change in the kernel", func() bool {
				return strings.Count(w.host.Run("nft", "list", "map", "ip", "balsa", "stay"), " . 8080") == len(rest) &&
					strings.Count(w.host.Run("nft", "list", "map", "ip6", "balsa", "stay"), " . 8080") == len(rest)
			})
			for range 5 {
				if name, _, err := from.ask("tcp", address); err != nil || name != first {
					t.Fatalf("%s, with %v there: %q answered after %q (%v)", address, rest, name, first, err)
				}
			}
		}
	}
}

func TestServicesOfAnotherServiceCIDRAreReachedAndAreNobodysEndpoints(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cidrs := w.client.NetworkingV1().ServiceCIDRs()
	routes := func() string { return w.host.Run("ip", "route", "show", "dev", DefaultDNSLink) }
	more := &networking.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networking.ServiceCIDRSpec{CIDRs: []string{"203.0.113.0/24"}}}
	more, err := cidrs.Create(t.Context(), more, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.service("s", "203.0.113.10", []string{podAddresses["a"]})
	w.service("loop", "10.96.0.77", []string{"203.0.113.10", podAddresses["b"]})
	more.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True"}}
	if _, err := cidrs.UpdateStatus(t.Context(), more, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("a route to the network", func() bool { return strings.Contains(routes(), "203.0.113.0/24") })
	w.answers(w.host, "tcp", "203.0.113.10:80", "a")
	w.answers(w.pods["c"], "tcp", "203.0.113.10:80", "a")
	w.answers(w.pods["c"], "tcp", "10.96.0.77:80", "b")
	if err := cidrs.Delete(t.Context(), "more", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("no route to the network", func() bool { return !strings.Contains(routes(), "203.0.113.0/24") })
}
