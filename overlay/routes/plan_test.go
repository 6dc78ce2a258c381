package routes

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func prefix(s string) netip.Prefix {
	if s == "" {
		return netip.Prefix{}
	}
	return netip.MustParsePrefix(s)
}

func ip(s string) netip.Addr {
	if s == "" {
		return netip.Addr{}
	}
	return netip.MustParseAddr(s)
}

func node(name, address, pods string, since int64) Node {
	return Node{Name: name, Address: ip(address), Pods: prefix(pods), Since: since}
}

// here is a host on one subnet with a router, and with a link to a single other host.
var here = Facts{
	Links: []Link{{Index: 2, MTU: 1500, Addresses: []netip.Addr{ip("192.0.2.1")}}, {Index: 3, MTU: 9000}},
	Routes: []Route{
		{To: prefix("0.0.0.0/0"), Link: 2},
		{To: prefix("192.0.2.0/24"), Link: 2, Attached: true},
		{To: prefix("192.0.2.77/32"), Link: 2}, // by a router, though inside the subnet
		{To: prefix("203.0.113.9/32"), Link: 3},
	},
}

func config(mode Mode) Config {
	return Config{Self: "me", Mode: mode, Networks: []netip.Prefix{prefix("10.244.0.0/16")}, VNI: 98, Port: 8472}
}

var me = node("me", "192.0.2.1", "10.244.1.0/24", 1)

func TestBuild(t *testing.T) {
	gateway := Gateway{Node: "near", Pods: prefix("10.244.2.0/24"), Via: ip("192.0.2.2"), Link: 2}
	near, far := node("near", "192.0.2.2", "10.244.2.0/24", 2), node("far", "198.51.100.3", "10.244.3.0/24", 3)
	nearPeer := Peer{Node: "near", Pods: near.Pods, Address: ip("10.244.2.0"), MAC: MAC{0x0a, 0x58, 10, 244, 2, 0}, Via: near.Address}
	farPeer := Peer{Node: "far", Pods: far.Pods, Address: ip("10.244.3.0"), MAC: MAC{0x0a, 0x58, 10, 244, 3, 0}, Via: far.Address}
	tunnel := func(peers ...Peer) *Tunnel {
		return &Tunnel{VNI: 98, Port: 8472, MTU: 1450, Overhead: 50, Local: me.Address, Address: ip("10.244.1.0"), MAC: MAC{0x0a, 0x58, 10, 244, 1, 0}, Peers: peers}
	}
	for name, tt := range map[string]struct {
		mode  Mode
		nodes []Node
		facts Facts
		want  Plan
		fault string
	}{
		"alone":                     {Auto, []Node{me}, here, Plan{MTU: 1500}, ""},
		"alone, by tunnel":          {VXLAN, []Node{me}, here, Plan{MTU: 1450, Tunnel: tunnel()}, ""},
		"nobody yet":                {Auto, nil, here, Plan{MTU: 1500}, ""},
		"neighbour":                 {Auto, []Node{me, near}, here, Plan{MTU: 1500, Gateways: []Gateway{gateway}, Members: []netip.Addr{near.Address}}, ""},
		"neighbour, by tunnel":      {VXLAN, []Node{me, near}, here, Plan{MTU: 1450, Tunnel: tunnel(nearPeer), Members: []netip.Addr{near.Address}}, ""},
		"neighbour, gateways only":  {HostGateway, []Node{me, near}, here, Plan{MTU: 1500, Gateways: []Gateway{gateway}}, ""},
		"elsewhere":                 {Auto, []Node{far, me}, here, Plan{MTU: 1450, Tunnel: tunnel(farPeer), Members: []netip.Addr{far.Address}}, ""},
		"elsewhere, gateways only":  {HostGateway, []Node{me, far}, here, Plan{MTU: 1500}, "on no subnet of this host"},
		"both":                      {Auto, []Node{far, near, me}, here, Plan{MTU: 1450, Gateways: []Gateway{gateway}, Tunnel: tunnel(farPeer), Members: []netip.Addr{near.Address, far.Address}}, ""},
		"no route":                  {Auto, []Node{me, near}, Facts{}, Plan{MTU: 1500, Members: []netip.Addr{near.Address}}, "no route"},
		"no address yet":            {Auto, []Node{me, node("new", "", "10.244.2.0/24", 2)}, here, Plan{MTU: 1500}, ""},
		"no network yet":            {Auto, []Node{me, node("new", "192.0.2.2", "", 2)}, here, Plan{MTU: 1500}, ""},
		"outside the networks":      {Auto, []Node{me, node("odd", "192.0.2.2", "192.0.2.0/24", 2)}, here, Plan{MTU: 1500}, "not in the cluster's"},
		"all of the networks":       {Auto, []Node{me, node("odd", "192.0.2.2", "0.0.0.0/0", 2)}, here, Plan{MTU: 1500}, "not in the cluster's"},
		"this node's address":       {Auto, []Node{me, node("twin", "192.0.2.1", "10.244.2.0/24", 2)}, here, Plan{MTU: 1500}, "node twin has the address 192.0.2.1 of node me"},
		"an older one has it":       {Auto, []Node{me, node("elder", "192.0.2.1", "10.244.8.0/24", 0), near}, here, Plan{MTU: 1500, Gateways: []Gateway{gateway}, Members: []netip.Addr{near.Address}}, "node me has the address 192.0.2.1 of node elder"},
		"two with one address":      {Auto, []Node{node("twin", "192.0.2.2", "10.244.9.0/24", 9), me, near}, here, Plan{MTU: 1500, Gateways: []Gateway{gateway}, Members: []netip.Addr{near.Address}}, "node twin has the address 192.0.2.2 of node near"},
		"a pod's address":           {Auto, []Node{me, node("odd", "10.244.9.9", "10.244.2.0/24", 2)}, here, Plan{MTU: 1500}, "cannot be a node's"},
		"a loopback address":        {Auto, []Node{me, node("odd", "127.0.0.2", "10.244.2.0/24", 2)}, here, Plan{MTU: 1500}, "cannot be a node's"},
		"second with a network":     {Auto, []Node{node("thief", "192.0.2.9", "10.244.2.0/24", 9), me, near}, here, Plan{MTU: 1500, Gateways: []Gateway{gateway}, Members: []netip.Addr{near.Address}}, "node thief has pod network 10.244.2.0/24, which overlaps that of node near"},
		"part of a network":         {Auto, []Node{node("thief", "192.0.2.9", "10.244.2.128/25", 9), me, near}, here, Plan{MTU: 1500, Gateways: []Gateway{gateway}, Members: []netip.Addr{near.Address}}, "overlaps that of node near"},
		"around a network":          {Auto, []Node{node("thief", "192.0.2.9", "10.244.2.0/23", 9), me, near}, here, Plan{MTU: 1500, Gateways: []Gateway{gateway}, Members: []netip.Addr{near.Address}}, "overlaps that of node near"},
		"same age, by name":         {Auto, []Node{node("nearer", "192.0.2.9", "10.244.2.0/24", 2), me, near}, here, Plan{MTU: 1500, Gateways: []Gateway{gateway}, Members: []netip.Addr{near.Address}}, "node nearer has"},
		"this node is the second":   {Auto, []Node{me, node("first", "192.0.2.9", "10.244.1.0/24", 0)}, here, Plan{MTU: 1500}, "the pods of me are not reached"},
		"this node has no network":  {VXLAN, []Node{node("me", "192.0.2.1", "", 1), far}, here, Plan{MTU: 1500, Members: []netip.Addr{far.Address}}, ""},
		"routed inside the subnet":  {HostGateway, []Node{me, node("odd", "192.0.2.77", "10.244.7.0/24", 2)}, here, Plan{MTU: 1500}, "on no subnet"},
		"point to point":            {HostGateway, []Node{me, node("odd", "203.0.113.9", "10.244.7.0/24", 2)}, here, Plan{MTU: 1500}, "on no subnet"},
		"everybody is a neighbour?": {HostGateway, []Node{me, far}, Facts{Routes: []Route{{To: prefix("0.0.0.0/0"), Link: 2, Attached: true}}}, Plan{MTU: 1500}, "on no subnet"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Build(config(tt.mode), tt.nodes, tt.facts)
			if faults := strings.Join(got.Faults, "; "); (tt.fault == "") != (faults == "") || !strings.Contains(faults, tt.fault) {
				t.Errorf("faults %q, want %q", faults, tt.fault)
			}
			got.Faults = nil
			if !same(got, &tt.want) {
				t.Errorf("got  %+v %+v\nwant %+v %+v", *got, got.Tunnel, tt.want, tt.want.Tunnel)
			}
		})
	}
}

func same(a, b *Plan) bool {
	return slices.Equal(a.Gateways, b.Gateways) && slices.Equal(a.Members, b.Members) && a.MTU == b.MTU &&
		(a.Tunnel == nil) == (b.Tunnel == nil) && (a.Tunnel == nil || slices.Equal(a.Tunnel.Peers, b.Tunnel.Peers) &&
		a.Tunnel.Local == b.Tunnel.Local && a.Tunnel.Address == b.Tunnel.Address && a.Tunnel.MAC == b.Tunnel.MAC &&
		a.Tunnel.MTU == b.Tunnel.MTU && a.Tunnel.VNI == b.Tunnel.VNI && a.Tunnel.Port == b.Tunnel.Port)
}

func TestTheBestRouteCounts(t *testing.T) {
	facts := Facts{Routes: []Route{
		{To: prefix("192.0.2.0/24"), Link: 5, Metric: 100, Attached: true}, {To: prefix("192.0.2.0/24"), Link: 2, Attached: true},
	}}
	p := Build(config(Auto), []Node{me, node("near", "192.0.2.2", "10.244.2.0/24", 2)}, facts)
	if len(p.Gateways) != 1 || p.Gateways[0].Link != 2 {
		t.Errorf("%+v", p.Gateways)
	}
}

func TestNodeOf(t *testing.T) {
	n := NodeOf(&v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: metav1.Unix(7, 0)},
		Spec:       v1.NodeSpec{PodCIDR: "fd00::/64", PodCIDRs: []string{"fd00::/64", "10.244.2.9/24"}},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{
			{Type: v1.NodeHostName, Address: "192.0.2.8"}, {Type: v1.NodeInternalIP, Address: "fd00::1"},
			{Type: v1.NodeInternalIP, Address: "nonsense"}, {Type: v1.NodeInternalIP, Address: "192.0.2.2"},
		}},
	})
	want := node("n", "192.0.2.2", "10.244.2.0/24", 7)
	want.Address6, want.Pods6 = ip("fd00::1"), prefix("fd00::/64")
	if n != want {
		t.Errorf("%+v, want %+v", n, want)
	}
	if n := NodeOf(&v1.Node{Spec: v1.NodeSpec{PodCIDR: "nonsense"}}); n.Pods.IsValid() || n.Address.IsValid() {
		t.Errorf("%+v", n)
	}
}

// TestPlansAreSound: whatever nodes say, the plan does not depend on their order, no two ways overlap each other or this
// node's network, all lead into the cluster's networks, and the oldest has what several claim.
func TestPlansAreSound(t *testing.T) {
	octet := rapid.IntRange(0, 5)
	rapid.Check(t, func(t *rapid.T) {
		nodes := []Node{me}
		for i := range rapid.IntRange(0, 12).Draw(t, "nodes") {
			bits := rapid.SampledFrom([]int{0, 15, 16, 22, 24, 24, 24, 25, 32}).Draw(t, "bits")
			pods := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rapid.SampledFrom([]int{244, 244, 244, 9}).Draw(t, "b")), byte(octet.Draw(t, "c")), 0}), bits).Masked()
			address := netip.AddrFrom4([4]byte{byte(rapid.SampledFrom([]int{192, 198, 127}).Draw(t, "subnet")), 0, 2, byte(octet.Draw(t, "d"))})
			nodes = append(nodes, Node{Name: fmt.Sprint("n", i), Address: address, Pods: pods, Since: int64(rapid.IntRange(0, 3).Draw(t, "since"))})
		}
		cfg := config(rapid.SampledFrom(Modes).Draw(t, "mode"))
		p := Build(cfg, nodes, here)
		if again := Build(cfg, rapid.Permutation(nodes).Draw(t, "order"), here); !reflect.DeepEqual(p, again) {
			t.Fatalf("the order of nodes matters:\n%+v\n%+v", p, again)
		}
		ways := make(map[string]netip.Prefix)
		for _, g := range p.Gateways {
			ways[g.Node] = g.Pods
		}
		if p.Tunnel != nil {
			for _, peer := range p.Tunnel.Peers {
				if _, twice := ways[peer.Node]; twice {
					t.Fatalf("two ways to %s", peer.Node)
				}
				ways[peer.Node] = peer.Pods
			}
		}
		checkWays(t, ways, nodes, cfg)
	})
}

func checkWays(t *rapid.T, ways map[string]netip.Prefix, nodes []Node, cfg Config) {
	for name, pods := range ways {
		if pods.Overlaps(me.Pods) || !within(pods, cfg.Networks) {
			t.Fatalf("a way to %s, which is %s's", pods, name)
		}
		var holder Node
		for _, n := range nodes {
			if n.Name == name {
				holder = n
			}
		}
		for _, n := range nodes {
			_, has := ways[n.Name]
			if n.Name != name && has && n.Pods.Overlaps(pods) {
				t.Fatalf("%s and %s both", n.Name, name)
			}
			if n.Pods == pods && oldestFirst(n, holder) < 0 {
				t.Fatalf("%s has %s, which was %s's first", name, pods, n.Name)
			}
		}
	}
}

// BenchmarkBuild plans for a large cluster; it is done again when a link or route of the host changes.
func BenchmarkBuild(b *testing.B) {
	nodes := []Node{me}
	cfg := config(Auto)
	cfg.Networks = []netip.Prefix{prefix("10.0.0.0/8")}
	for i := range 5000 {
		nodes = append(nodes, Node{Name: fmt.Sprint("n", i), Address: netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}),
			Pods: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24), Since: 2})
	}
	for b.Loop() {
		Build(cfg, nodes, here)
	}
}
