package routes

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// both gives a node a second family.
func both(n Node, address, pods string) Node {
	n.Address6, n.Pods6 = ip(address), prefix(pods)
	return n
}

var (
	here6 = Facts{
		Links: []Link{{Index: 2, MTU: 1500, Addresses: []netip.Addr{ip("192.0.2.1"), ip("2001:db8::1")}}},
		Routes: append(slices.Clip(here.Routes), Route{To: prefix("::/0"), Link: 2},
			Route{To: prefix("2001:db8::/64"), Link: 2, Attached: true}, Route{To: prefix("fe80::/64"), Link: 2, Attached: true}),
	}
	me6 = both(me, "2001:db8::1", "fd00:244:0:1::/64")
)

func config6(mode Mode) Config {
	cfg := config(mode)
	cfg.Networks = append(cfg.Networks, prefix("fd00:244::/48"))
	return cfg
}

// TestDualStack: each family goes its own way, and the tunnel takes both in packets of IPv4.
func TestDualStack(t *testing.T) {
	near := both(node("near", "192.0.2.2", "10.244.2.0/24", 2), "2001:db8::2", "fd00:244:0:2::/64")
	far := both(node("far", "198.51.100.3", "10.244.3.0/24", 3), "2001:db8:0:9::3", "fd00:244:0:3::/64")
	half := both(node("half", "192.0.2.4", "10.244.4.0/24", 4), "", "fd00:244:0:4::/64")
	p := Build(config6(Auto), []Node{me6, near, far, half}, here6)
	gateways := []Gateway{
		{"near", near.Pods, near.Address, 2}, {"half", half.Pods, half.Address, 2}, {"near", near.Pods6, near.Address6, 2},
	}
	if !slices.Equal(p.Gateways, gateways) {
		t.Errorf("gateways %+v", p.Gateways)
	}
	mac3, mac4 := MAC{0x0a, 0x58, 10, 244, 3, 0}, MAC{0x0a, 0x58, 10, 244, 4, 0}
	peers := []Peer{
		{Node: "far", Pods: far.Pods, Address: ip("10.244.3.0"), MAC: mac3, Via: far.Address},
		{Node: "far", Pods: far.Pods6, Address: ip("fe80::858:aff:fef4:300"), MAC: mac3, Via: far.Address},
		{Node: "half", Pods: half.Pods6, Address: ip("fe80::858:aff:fef4:400"), MAC: mac4, Via: half.Address},
	}
	if p.Tunnel == nil || !slices.Equal(p.Tunnel.Peers, peers) {
		t.Fatalf("tunnel %+v", p.Tunnel)
	}
	if p.Tunnel.Source6 != ip("fd00:244:0:1::1") || p.MTU != 1450 || len(p.Faults) > 0 {
		t.Errorf("%+v %+v", p, p.Tunnel)
	}
	if want := []netip.Addr{near.Address, half.Address, far.Address}; !slices.Equal(p.Members, want) {
		t.Errorf("members %v", p.Members)
	}
	sources := []Source{{near.Address, prefix("10.244.2.0/24")}, {near.Address, prefix("192.0.2.2/32")}, {near.Address, prefix("2001:db8::2/128")}, {near.Address, prefix("fd00:244:0:2::/64")},
		{half.Address, prefix("10.244.4.0/24")}, {half.Address, prefix("192.0.2.4/32")}, {half.Address, prefix("fd00:244:0:4::/64")},
		{far.Address, prefix("10.244.3.0/24")}, {far.Address, prefix("198.51.100.3/32")}, {far.Address, prefix("2001:db8:0:9::3/128")}, {far.Address, prefix("fd00:244:0:3::/64")}}
	if !slices.Equal(p.Sources, sources) {
		t.Errorf("sources %v", p.Sources)
	}
	p = Build(config6(HostGateway), []Node{me6, half}, here6)
	if len(p.Gateways) != 1 || !strings.Contains(strings.Join(p.Faults, ""), "node half has no address of the family") {
		t.Errorf("%+v", p)
	}
}

// TestOnlyIPv6: the tunnel's packets are IPv6 where there is nothing else.
func TestOnlyIPv6(t *testing.T) {
	me := both(Node{Name: "me", Since: 1}, "2001:db8::1", "fd00:244:0:1::/64")
	far := both(Node{Name: "far", Since: 2}, "2001:db8:0:9::3", "fd00:244:0:3::/64")
	p := Build(config6(Auto), []Node{me, far}, here6)
	mac := MAC{0x0a, 0x58, 0, 0, 0, 3}
	want := []Peer{{Node: "far", Pods: far.Pods6, Address: linkLocal(mac), MAC: mac, Via: far.Address6}}
	if p.Tunnel == nil || !slices.Equal(p.Tunnel.Peers, want) || p.MTU != 1430 || p.Tunnel.Local != me.Address6 || p.Tunnel.Address.IsValid() {
		t.Errorf("%+v %+v", p, p.Tunnel)
	}
}

func TestRelayedTunnel(t *testing.T) {
	near := node("near", "192.0.2.2", "10.244.2.0/24", 2)
	p := Build(config(UDP), []Node{me, near}, here)
	if p.Tunnel == nil || !p.Tunnel.Relayed || p.MTU != 1472 || len(p.Tunnel.Peers) != 1 || len(p.Gateways) != 0 ||
		!slices.Equal(p.Tunnel.Pods, []netip.Prefix{me.Pods}) || !slices.Equal(p.Members, []netip.Addr{near.Address}) {
		t.Errorf("%+v %+v", p, p.Tunnel)
	}
}

// TestNarrowWays: a way that takes less than the links do concerns that way alone, and one that takes too little is told of.
func TestNarrowWays(t *testing.T) {
	far, bad := node("far", "198.51.100.3", "10.244.3.0/24", 3), node("bad", "198.51.100.4", "10.244.4.0/24", 4)
	fine := node("fine", "198.51.100.5", "10.244.5.0/24", 5)
	facts := here
	facts.Paths = map[netip.Addr]int{far.Address: 1400, bad.Address: 1300, fine.Address: 9000}
	p := Build(config(Auto), []Node{me, far, bad, fine}, facts)
	var got []int
	for _, peer := range p.Tunnel.Peers {
		got = append(got, peer.MTU)
	}
	if !slices.Equal(got, []int{1350, 1250, 0}) || p.MTU != 1450 || p.Tunnel.MTU != 1450 {
		t.Errorf("%v, %+v", got, p)
	}
	if text := strings.Join(p.Faults, ""); len(p.Faults) != 1 || !strings.Contains(text, "node bad at 198.51.100.4") {
		t.Errorf("faults %q", p.Faults)
	}
	facts.Links = []Link{{Index: 2, MTU: 1300, Addresses: []netip.Addr{me.Address}}}
	if p := Build(config(Auto), []Node{me, fine}, facts); len(p.Faults) != 1 || !strings.Contains(p.Faults[0], "this node's link") {
		t.Errorf("faults %q", p.Faults)
	}
}

func TestExport(t *testing.T) {
	nodes := []Node{
		both(node("b", "192.0.2.2", "10.244.2.0/24", 2), "2001:db8::2", "fd00:244:0:2::/64"), me,
		node("thief", "192.0.2.9", "10.244.2.128/25", 9), both(node("half", "192.0.2.4", "10.244.4.0/24", 4), "", "fd00:244:0:4::/64"),
		node("new", "", "10.244.5.0/24", 5), node("bare", "192.0.2.6", "", 6),
	}
	routes, faults := Export(config6(Auto).Networks, nodes)
	want := []Static{
		{"me", prefix("10.244.1.0/24"), ip("192.0.2.1")}, {"b", prefix("10.244.2.0/24"), ip("192.0.2.2")},
		{"half", prefix("10.244.4.0/24"), ip("192.0.2.4")}, {"b", prefix("fd00:244:0:2::/64"), ip("2001:db8::2")},
	}
	if !reflect.DeepEqual(routes, want) {
		t.Errorf("%+v", routes)
	}
	if text := strings.Join(faults, "; "); len(faults) != 2 || !strings.Contains(text, "node thief has pod network") || !strings.Contains(text, "node half has pod network fd00:244:0:4::/64") {
		t.Errorf("faults %q", faults)
	}
}
