package routes

import (
	"cmp"
	"net/netip"
	"slices"
)

// Mode says which kinds of routes may be used. All nodes of a cluster should have the same.
type Mode string

// Modes. Auto makes a node on a subnet of this host a gateway, and uses the tunnel to all others. UDP is a tunnel that a process
// carries, for networks and kernels on which VXLAN does not work. WireGuard is an encrypted tunnel to every node; it is chosen
// with --overlay-encryption and is not among Modes.
const (
	Auto        Mode = "auto"
	VXLAN       Mode = "vxlan"
	HostGateway Mode = "host-gw"
	UDP         Mode = "udp"
	WireGuard   Mode = "wireguard"
)

// Modes are the modes that can be chosen with --overlay-mode.
var Modes = []Mode{Auto, VXLAN, HostGateway, UDP}

// tunnelsAll tells whether every other node is reached through the tunnel.
func (m Mode) tunnelsAll() bool { return m == VXLAN || m.relayed() }

// relayed tells whether a process carries the tunnel's packets.
func (m Mode) relayed() bool { return m == UDP || m == WireGuard }

// The bytes that a tunnel adds to a packet.
const (
	ip4Header     = 20
	ip6Header     = 40
	udpHeader     = 8
	vxlanOverhead = 8 + 14  // VXLAN and Ethernet headers
	cryptOverhead = 16 + 16 // of WireGuard's transport messages: header and authenticator
)

// LeastMTU is the least MTU that a route should have, in bytes: IPv6 demands it (RFC 8200, 5).
const LeastMTU = 1280

// Config is what all plans of a node have in common.
type Config struct {
	Self string // the name of this node
	Mode Mode
	// Networks are the cluster's pod networks: no route to anything else is made.
	Networks []netip.Prefix
	VNI      int // the tunnel's network identifier, 24 bits
	Port     int // the tunnel's UDP port
}

// Plan is what the kernel must hold so that other nodes' pods are reached.
type Plan struct {
	Gateways []Gateway // ordered by network
	Tunnel   *Tunnel   // nil: none
	// Members are the addresses of the other nodes, ordered: only they may send to the tunnel's port. Nil where there may be no
	// tunnel. All are of one family, the one of the tunnel's packets.
	Members []netip.Addr
	// Sources say which packets each member may send through the tunnel: those of its own pods, and its own. Ordered by Member.
	Sources []Source
	// MTU is the MTU of this node's pods.
	MTU int
	// Faults say, for people, which nodes are not reached and why; ordered by the nodes' age.
	Faults []string
}

// Source is a network of which a member may send packets through the tunnel.
type Source struct {
	Member  netip.Addr // an element of Plan.Members
	Network netip.Prefix
}

// Gateway is the route to the pods of a node that is a neighbour on a link.
type Gateway struct {
	Node string
	Pods netip.Prefix
	Via  netip.Addr
	Link int // index
}

// Tunnel is the link to nodes that are on no subnet of this host.
type Tunnel struct {
	// Relayed: a process carries the packets (modes UDP and WireGuard), not the kernel. Encrypted: by WireGuard's protocol.
	Relayed        bool
	Encrypted      bool
	VNI, Port, MTU int
	// Overhead is what the tunnel adds to a packet, in bytes.
	Overhead int
	// Local is the source address of the tunnel's packets; not valid: the kernel chooses.
	Local netip.Addr
	// Address is this node's IPv4 address inside the tunnel; not valid: none. MAC is its link-layer address there.
	Address netip.Addr
	MAC     MAC
	// Source6 is the source of packets that the node itself sends to IPv6 pods through the tunnel; not valid: none.
	Source6 netip.Addr
	// Pods are this node's pod networks: only packets to them may come out of the tunnel.
	Pods  []netip.Prefix
	Peers []Peer // ordered by network; a node with two networks is two
}

// Peer is the route to a node's pods through the tunnel.
type Peer struct {
	Node string
	Pods netip.Prefix
	// Address and MAC are the node's addresses inside the tunnel, Via is its own address.
	Address netip.Addr
	MAC     MAC
	Via     netip.Addr
	// Key is the node's public key in an encrypted tunnel.
	Key Key
	// MTU is the MTU of the route; 0: the MTU of the tunnel's link.
	MTU int
}

// Build returns the plan. Nodes may be in any order and include this one.
func Build(cfg Config, nodes []Node, facts Facts) *Plan {
	b := builder{cfg: cfg, plan: &Plan{}, routes: newRoutes(facts.Routes), facts: &facts}
	admitted := b.admit(nodes)
	b.over4 = b.self.Address.IsValid() || !b.self.Address6.IsValid()
	for i := range admitted {
		n := &admitted[i]
		for _, a := range []*netip.Addr{&n.Address, &n.Address6} {
			if *a == b.self.Address || *a == b.self.Address6 { // an address of this node leads to no other node, whichever node had it first
				*a = netip.Addr{}
			}
		}
		if n.Name != b.self.Name && (n.Address.IsValid() || n.Address6.IsValid()) && b.agreesOnEncryption(n) {
			b.addNode(n)
		}
	}
	b.finish()
	return b.plan
}

type builder struct {
	cfg    Config
	plan   *Plan
	routes routes
	facts  *Facts
	self   Node
	over4  bool // the tunnel's packets are IPv4
	peers  []Peer
}

// addNode adds the routes to a node's pods.
func (b *builder) addNode(n *Node) {
	var networks []netip.Prefix
	for _, pods := range []netip.Prefix{n.Pods, n.Pods6} {
		if !pods.IsValid() || pods.Overlaps(b.self.Pods) || pods.Overlaps(b.self.Pods6) || pods.Addr().Is6() && !b.self.Pods6.IsValid() {
			continue
		}
		networks = append(networks, pods)
		b.addRoute(n, pods)
	}
	if a := n.address(b.over4); len(networks) > 0 && a.IsValid() && b.cfg.Mode != HostGateway {
		b.addMember(n, a, networks)
	}
}

// addMember lets the node send to the tunnel's port from the address: packets of its pod networks and its own.
func (b *builder) addMember(n *Node, from netip.Addr, networks []netip.Prefix) {
	for _, a := range []netip.Addr{n.Address, n.Address6} {
		if a.IsValid() {
			networks = append(networks, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	b.plan.Members = append(b.plan.Members, from)
	for _, network := range networks {
		b.plan.Sources = append(b.plan.Sources, Source{Member: from, Network: network})
	}
}

// addRoute makes the node a gateway to its pods, or a peer of the tunnel.
func (b *builder) addRoute(n *Node, pods netip.Prefix) {
	direct := n.address(pods.Addr().Is4())
	r, ok := b.routes.lookup(direct)
	if !b.cfg.Mode.tunnelsAll() && ok && r.Attached && r.To.Bits() > 0 {
		b.plan.Gateways = append(b.plan.Gateways, Gateway{Node: n.Name, Pods: pods, Via: direct, Link: r.Link})
		return
	}
	if b.cfg.Mode == HostGateway {
		switch {
		case !direct.IsValid():
			b.fault("node %s has no address of the family of its pod network %s: these pods are not reached", n.Name, pods)
		case !ok:
			b.fault("node %s is at %s, to which this host has no route: its pods are not reached", n.Name, direct)
		default:
			b.fault("node %s is at %s, which is on no subnet of this host, and the overlay's mode is %s: its pods are not reached",
				n.Name, direct, HostGateway)
		}
		return
	}
	via := n.address(b.over4)
	if !via.IsValid() {
		b.fault("node %s has no address of the family over which this node's tunnel goes: its pods are not reached", n.Name)
		return
	}
	if _, ok := b.routes.lookup(via); !ok {
		b.fault("node %s is at %s, to which this host has no route: its pods are not reached", n.Name, via)
		return
	}
	b.peers = append(b.peers, peerOf(n, pods, via))
}

func (b *builder) finish() {
	p := b.plan
	slices.SortFunc(p.Gateways, func(x, y Gateway) int { return x.Pods.Addr().Compare(y.Pods.Addr()) })
	slices.SortFunc(b.peers, func(x, y Peer) int { return x.Pods.Addr().Compare(y.Pods.Addr()) })
	slices.SortFunc(p.Members, netip.Addr.Compare)
	p.Members = slices.Compact(p.Members)
	slices.SortFunc(p.Sources, func(x, y Source) int {
		return cmp.Or(x.Member.Compare(y.Member), x.Network.Addr().Compare(y.Network.Addr()))
	})
	local := b.self.address(b.over4)
	p.MTU = b.facts.uplinkMTU(local, b.routes)
	if !b.self.Pods.IsValid() && !b.self.Pods6.IsValid() || len(b.peers) == 0 && !b.cfg.Mode.tunnelsAll() {
		return
	}
	t := &Tunnel{Relayed: b.cfg.Mode.relayed(), Encrypted: b.cfg.Mode == WireGuard, VNI: b.cfg.VNI, Port: b.cfg.Port, MAC: macOf(b.self.Pods, b.self.Pods6), Overhead: b.overhead()}
	p.MTU -= t.Overhead
	t.MTU = p.MTU
	if b.self.Pods.IsValid() {
		t.Address, t.Pods = b.self.Pods.Addr(), append(t.Pods, b.self.Pods)
	}
	if b.self.Pods6.IsValid() {
		t.Source6, t.Pods = b.self.Pods6.Addr().Next(), append(t.Pods, b.self.Pods6)
	}
	if b.facts.has(local) {
		t.Local = local
	}
	t.Peers = b.peers
	p.Tunnel = t
	b.limitMTUs(t)
}

func (b *builder) overhead() int {
	size := udpHeader + ip4Header
	if !b.over4 {
		size = udpHeader + ip6Header
	}
	switch b.cfg.Mode {
	case UDP:
		return size
	case WireGuard:
		return size + cryptOverhead
	}
	return size + vxlanOverhead
}

// limitMTUs sets the MTU of routes whose path takes less than the link, and reports routes whose path takes too little.
func (b *builder) limitMTUs(t *Tunnel) {
	if t.MTU < LeastMTU {
		b.fault("this node's link takes packets of %d bytes, of which the tunnel leaves pods %d; give the link an MTU of at least %d",
			t.MTU+t.Overhead, t.MTU, LeastMTU+t.Overhead)
	}
	for i := range t.Peers {
		p := &t.Peers[i]
		path := b.facts.Paths[p.Via]
		if path <= 0 || path-t.Overhead >= t.MTU {
			continue
		}
		p.MTU = path - t.Overhead
		if p.MTU < LeastMTU {
			b.fault("the path to node %s at %s takes packets of %d bytes, of which the tunnel leaves pods %d: large packets of IPv6 "+
				"and of programs that need %d are lost; let the networks between take at least %d", p.Node, p.Via, path, p.MTU,
				LeastMTU, LeastMTU+t.Overhead)
			if p.Pods.Addr().Is6() {
				p.MTU = LeastMTU // the kernel accepts no smaller one; the tunnel's own packets are fragmented on the path
			}
		}
	}
}
