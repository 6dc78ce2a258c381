package speaker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/net/bpf"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEveryNodeChoosesAlikeAndALostNodeMovesItsOwnOnly(t *testing.T) {
	var stations []nodeView
	for i := range 10 {
		stations = append(stations, nodeView{name: fmt.Sprint("n", i), able: true, lans: "192.0.0.0/16,2001:db8::/64"})
	}
	var all []netip.Addr
	for i := range 1000 {
		all = append(all, netip.AddrFrom4([4]byte{192, 0, byte(i / 250), byte(1 + i%250)}))
	}
	f := candidatesOf(stations)
	share := map[string]int{}
	for _, a := range all {
		share[f.holder(balancer{}, a)]++
	}
	for _, s := range stations {
		if n := share[s.name]; n < 50 || n > 160 {
			t.Errorf("%s has %d of 1000 addresses", s.name, n)
		}
	}
	shuffled := slices.Clone(stations)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	shuffled[3].able = false
	fewer := candidatesOf(shuffled)
	for _, a := range all {
		was, now := f.holder(balancer{}, a), fewer.holder(balancer{}, a)
		if (was == shuffled[3].name) == (was == now) {
			t.Fatalf("%s went from %s to %s when %s was lost", a, was, now, shuffled[3].name)
		}
	}
}

func TestOnlyNodesThatCanHaveAnAddressGetIt(t *testing.T) {
	address := netip.MustParseAddr("192.0.2.9")
	for _, c := range []struct {
		name     string
		stations []nodeView
		b        balancer
		want     string
	}{
		{"its LAN", []nodeView{{"a", true, "198.51.100.0/24"}, {"b", true, "192.0.2.0/24"}}, balancer{}, "b"},
		{"not able", []nodeView{{"a", false, "192.0.2.0/24"}}, balancer{}, ""},
		{"nothing told", []nodeView{{"a", true, ""}}, balancer{}, ""},
		{"nonsense told", []nodeView{{"a", true, "192.0.2.0/33,,x"}}, balancer{}, ""},
		{"an endpoint", []nodeView{{"a", true, "192.0.2.0/24"}, {"b", true, "192.0.2.0/24"}}, balancer{local: true, at: []string{"b"}}, "b"},
		{"no endpoint", []nodeView{{"a", true, "192.0.2.0/24"}}, balancer{local: true}, ""},
	} {
		if got := candidatesOf(c.stations).holder(c.b, address); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestEndpointsOnTheirWayOutCountWhenThereAreNoOthers(t *testing.T) {
	yes, no := true, false
	end := func(node string, ready, serving bool) discovery.Endpoint {
		return discovery.Endpoint{NodeName: &node, Conditions: discovery.EndpointConditions{Ready: &ready, Serving: &serving}}
	}
	list := []*discovery.EndpointSlice{{Endpoints: []discovery.Endpoint{end("c", no, yes), end("d", no, no), {}}}}
	if got := nodesOf(list); !slices.Equal(got, []string{"c"}) {
		t.Fatal(got)
	}
	list = append(list, &discovery.EndpointSlice{Endpoints: []discovery.Endpoint{end("b", yes, yes), end("a", yes, yes), end("b", yes, yes)}})
	if got := nodesOf(list); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatal(got)
	}
}

func TestWhatServicesWantAnnounced(t *testing.T) {
	proxy := v1.LoadBalancerIPModeProxy
	for name, change := range map[string]func(*v1.Service){
		"another type":    func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeNodePort },
		"on its way out":  func(s *v1.Service) { now := metav1.Now(); s.DeletionTimestamp = &now },
		"somebody else's": func(s *v1.Service) { s.Status.Conditions[0].Type = "example.com/Ready" },
		"a proxy's":       func(s *v1.Service) { s.Status.LoadBalancer.Ingress[0].IPMode = &proxy },
		"a name":          func(s *v1.Service) { s.Status.LoadBalancer.Ingress[0] = v1.LoadBalancerIngress{Hostname: "x"} },
	} {
		s := service("s", vip)
		if b, ok := balancerOf(s); !ok || len(b.addresses) != 1 {
			t.Fatal(b, ok)
		}
		if change(s); func() bool { _, ok := balancerOf(s); return ok }() {
			t.Errorf("%s is announced", name)
		}
	}
}

var someMAC = net.HardwareAddr{2, 0, 0, 0, 0, 7}

// solicit is a neighbour solicitation as a neighbour would send it.
func solicit(source, target netip.Addr) []byte {
	b := advertise(source, solicitedNode(target), target, someMAC, 0)
	body := b[ipv6Header:]
	body[0], body[2], body[3], body[24] = solicitation, 0, 0, 1
	binary.BigEndian.PutUint16(body[2:], icmpChecksum(source, solicitedNode(target), body))
	return b
}

func TestFiltersPassQuestionsAboutOurAddressesOnly(t *testing.T) {
	asker, mine, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr(vip), netip.MustParseAddr("192.0.2.77")
	asker6, mine6, other6 := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr(vip6), netip.MustParseAddr("2001:db8::77")
	arp := func(sender, target netip.Addr) []byte {
		return arpPacket{op: arpRequest, senderMAC: someMAC, sender: sender, targetMAC: someMAC, target: target}.bytes()
	}
	notICMP := solicit(asker6, mine6)
	notICMP[6] = 17
	for _, c := range []struct {
		name   string
		filter func([]netip.Addr) ([]bpf.RawInstruction, error)
		packet []byte
		want   bool
	}{
		{"asked", arpFilter, arp(asker, mine), true}, {"asked for another", arpFilter, arp(asker, other), false},
		{"claimed", arpFilter, arp(mine, other), true}, {"too short", arpFilter, arp(asker, mine)[:20], false},
		{"asked", ndpFilter, solicit(asker6, mine6), true}, {"asked for another", ndpFilter, solicit(asker6, other6), false},
		{"claimed", ndpFilter, advertise(asker6, allNodes, mine6, someMAC, 0), true}, {"no ICMPv6", ndpFilter, notICMP, false},
	} {
		raw, err := c.filter([]netip.Addr{netip.MustParseAddr("192.0.2.201"), mine, mine6})
		if err != nil {
			t.Fatal(err)
		}
		program, _ := bpf.Disassemble(raw)
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := vm.Run(c.packet); err != nil || (n > 0) != c.want {
			t.Errorf("%s: %d, %v", c.name, n, err)
		}
	}
	for _, filter := range []func([]netip.Addr) ([]bpf.RawInstruction, error){arpFilter, ndpFilter} {
		for _, n := range []int{0, mostFiltered, mostFiltered + 1, 100000} {
			raw, err := filter(slices.Repeat([]netip.Addr{mine}, n))
			if err != nil || len(raw) > 4096 {
				t.Errorf("%d addresses: %d instructions, %v", n, len(raw), err)
			}
		}
	}
}

func TestPacketsSurviveTheirWay(t *testing.T) {
	p := arpPacket{op: arpReply, senderMAC: someMAC, sender: netip.MustParseAddr(vip), targetMAC: net.HardwareAddr{1, 2, 3, 4, 5, 6}, target: netip.MustParseAddr("192.0.2.1")}
	if got, ok := parseARP(p.bytes()); !ok || !bytes.Equal(got.bytes(), p.bytes()) {
		t.Errorf("%+v", got)
	}
	source, target := netip.MustParseAddr("fe80::1"), netip.MustParseAddr(vip6)
	b := advertise(source, allNodes, target, someMAC, flagOverride)
	if m, ok := parseNDP(b); !ok || m.kind != advertisement || m.source != source || m.target != target {
		t.Errorf("%+v %v", m, ok)
	}
	for i := range b {
		for _, bit := range []byte{1, 128} {
			bad := slices.Clone(b)
			bad[i] ^= bit
			// Traffic class and flow label are nobody's business.
			if _, ok := parseNDP(bad); ok && i > 3 {
				t.Errorf("a wrong bit in byte %d is not noticed", i)
			}
		}
	}
}

func FuzzPackets(f *testing.F) {
	f.Add(arpPacket{op: 1, senderMAC: someMAC, sender: netip.MustParseAddr(vip), targetMAC: someMAC, target: netip.MustParseAddr(vip)}.bytes())
	f.Add(solicit(netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr(vip6)))
	f.Add(solicit(netip.IPv6Unspecified(), netip.MustParseAddr(vip6)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := parseARP(b); ok && !bytes.Equal(p.bytes(), b[:arpLength]) {
			t.Fatalf("%x became %x", b[:arpLength], p.bytes())
		}
		if m, ok := parseNDP(b); ok && (m.target.IsMulticast() || m.source.IsMulticast()) {
			t.Fatalf("%+v", m)
		}
	})
}
