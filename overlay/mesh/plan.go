package mesh

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// Mode says which ways may be used. The nodes of a cluster should have the same.
type Mode string

// Modes. Auto takes a node of a subnet of this host as gateway, and the tunnel to all others.
const (
	Auto        Mode = "auto"
	VXLAN       Mode = "vxlan"
	HostGateway Mode = "host-gw"
)

// Modes are all there are.
var Modes = []Mode{Auto, VXLAN, HostGateway}

// overhead is what the tunnel adds to a packet, in bytes: Ethernet, VXLAN, UDP and IPv4 headers.
const overhead = 50

// Config is what all plans of a node have in common.
type Config struct {
	Self string // the name of this node
	Mode Mode
	// Networks are the cluster's pod networks: no route to anything else is made.
	Networks []netip.Prefix
	VNI      int // the tunnel's network identifier, 24 bits
	Port     int // the tunnel's UDP port
}

// Plan is what should be in the kernel for other nodes' pods to be reached.
type Plan struct {
	Gateways []Gateway // ordered by network
	Tunnel   *Tunnel   // nil: none
	// Members are the addresses of the other nodes, ordered: they alone may send to the tunnel's port. Nil where there
	// may be no tunnel.
	Members []netip.Addr
	// MTU is that of this node's pods.
	MTU int
	// Faults tell which nodes are not reached and why, in words for people; ordered by age of the nodes.
	Faults []string
}

// Gateway is the way to a node that is a neighbour on a link.
type Gateway struct {
	Node string
	Pods netip.Prefix
	Via  netip.Addr
	Link int // index
}

// Tunnel is the link to nodes elsewhere.
type Tunnel struct {
	VNI, Port, MTU int
	// Local is the source address of its packets; not valid: the kernel's choice.
	Local netip.Addr
	// Address is this node's address inside, MAC the one below it.
	Address netip.Addr
	MAC     MAC
	Peers   []Peer // ordered by network
}

// Peer is the way to a node through the tunnel.
type Peer struct {
	Node string
	Pods netip.Prefix
	// Address and MAC are the node's inside the tunnel, Via is its own.
	Address netip.Addr
	MAC     MAC
	Via     netip.Addr
}

// MAC is a link-layer address.
type MAC [6]byte

// String is the usual form.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// macOf makes a link-layer address from an IPv4 address, as the bridge has one from its own.
func macOf(a netip.Addr) MAC {
	b := a.As4()
	return MAC{0x0a, 0x58, b[0], b[1], b[2], b[3]}
}

// Build works out the plan. Nodes may be in any order and include this one.
func Build(cfg Config, nodes []Node, facts Facts) *Plan {
	b := builder{cfg: cfg, plan: &Plan{}, routes: newRoutes(facts.Routes)}
	admitted := b.admit(nodes)
	var peers []Peer
	for _, n := range admitted {
		if n.Name == b.self.Name || !b.addressed(n) || n.Pods.Overlaps(b.self.Pods) {
			continue
		}
		b.plan.Members = append(b.plan.Members, n.Address)
		if tunnelled := b.way(n); tunnelled {
			a := n.Pods.Addr()
			peers = append(peers, Peer{Node: n.Name, Pods: n.Pods, Address: a, MAC: macOf(a), Via: n.Address})
		}
	}
	b.finish(peers, &facts)
	return b.plan
}

type builder struct {
	cfg    Config
	plan   *Plan
	routes routes
	self   Node
}

func (b *builder) fault(format string, args ...any) {
	b.plan.Faults = append(b.plan.Faults, fmt.Sprintf(format, args...))
}

// admit returns the nodes whose networks are good and theirs, the oldest first.
func (b *builder) admit(nodes []Node) []Node {
	sorted := slices.SortedFunc(slices.Values(nodes), firstFirst)
	taken := newClaims()
	var admitted []Node
	for _, n := range sorted {
		if n.Name == b.cfg.Self {
			b.self = n
		}
		if !n.Pods.IsValid() {
			continue
		}
		if !within(n.Pods, b.cfg.Networks) {
			b.fault("node %s has pod network %s, which is not in the cluster's: its pods are not reached", n.Name, n.Pods)
			continue
		}
		if other, ok := taken.claim(n.Pods, n.Name); !ok {
			b.fault("node %s has pod network %s, which overlaps that of node %s, which had it first: the pods of %s are not reached",
				n.Name, n.Pods, other, n.Name)
			continue
		}
		admitted = append(admitted, n)
	}
	return admitted
}

func within(p netip.Prefix, networks []netip.Prefix) bool {
	return slices.ContainsFunc(networks, func(around netip.Prefix) bool {
		return around.Bits() <= p.Bits() && around.Contains(p.Addr())
	})
}

// addressed tells whether the node has an address that can be sent to; without any, it is still to come.
func (b *builder) addressed(n Node) bool {
	a := n.Address
	switch {
	case !a.IsValid():
		return false
	case a == b.self.Address:
		b.fault("node %s has the address %s of this node: its pods are not reached", n.Name, a)
		return false
	case a.IsLoopback(), a.IsMulticast(), a.IsUnspecified(), within(netip.PrefixFrom(a, a.BitLen()), b.cfg.Networks):
		b.fault("node %s has the address %s, which cannot be a node's: its pods are not reached", n.Name, a)
		return false
	}
	return true
}

// way makes the node a gateway, or tells that it is a peer of the tunnel.
func (b *builder) way(n Node) (tunnelled bool) {
	r, ok := b.routes.to(n.Address)
	switch {
	case !ok:
		b.fault("node %s is at %s, to which this host has no route: its pods are not reached", n.Name, n.Address)
	case b.cfg.Mode != VXLAN && r.Attached && r.To.Bits() > 0:
		b.plan.Gateways = append(b.plan.Gateways, Gateway{Node: n.Name, Pods: n.Pods, Via: n.Address, Link: r.Link})
	case b.cfg.Mode == HostGateway:
		b.fault("node %s is at %s, which is on no subnet of this host, and the overlay's mode is %s: its pods are not reached",
			n.Name, n.Address, HostGateway)
	default:
		return true
	}
	return false
}

func (b *builder) finish(peers []Peer, facts *Facts) {
	p := b.plan
	slices.SortFunc(p.Gateways, func(x, y Gateway) int { return x.Pods.Addr().Compare(y.Pods.Addr()) })
	slices.SortFunc(peers, func(x, y Peer) int { return x.Pods.Addr().Compare(y.Pods.Addr()) })
	slices.SortFunc(p.Members, netip.Addr.Compare)
	p.Members = slices.Compact(p.Members)
	if b.cfg.Mode == HostGateway {
		p.Members = nil
	}
	p.MTU = facts.uplinkMTU(b.self.Address, b.routes)
	if !b.self.Pods.IsValid() || len(peers) == 0 && b.cfg.Mode != VXLAN {
		return
	}
	p.MTU -= overhead
	a := b.self.Pods.Addr()
	p.Tunnel = &Tunnel{VNI: b.cfg.VNI, Port: b.cfg.Port, MTU: p.MTU, Address: a, MAC: macOf(a), Peers: peers}
	if facts.has(b.self.Address) {
		p.Tunnel.Local = b.self.Address
	}
}
