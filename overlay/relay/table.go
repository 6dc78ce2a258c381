package relay

import (
	"net"
	"net/netip"
	"slices"

	"github.com/balsahq/balsa/overlay/routes"
)

// table says which pod network is on which node. It never changes once it is made.
type table struct {
	to    map[netip.Prefix]*net.UDPAddr
	sizes [2][]int                      // by family, the lengths of the prefixes in to; usually one length
	from  map[netip.Addr][]netip.Prefix // the pod networks of a member, by its address
	own   []netip.Prefix
}

func newTable(t *routes.Tunnel) *table {
	out := &table{to: make(map[netip.Prefix]*net.UDPAddr), from: make(map[netip.Addr][]netip.Prefix), own: t.Pods}
	for i := range t.Peers {
		p := &t.Peers[i]
		out.to[p.Pods] = net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.Via, uint16(t.Port)))
		out.from[p.Via] = append(out.from[p.Via], p.Pods)
		sizes := &out.sizes[family(p.Pods.Addr())]
		if !slices.Contains(*sizes, p.Pods.Bits()) {
			*sizes = append(*sizes, p.Pods.Bits())
		}
	}
	return out
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// target returns the node to which a packet from the link goes; nil: none.
func (t *table) target(packet []byte) *net.UDPAddr {
	_, to, ok := addressesOf(packet)
	if !ok {
		return nil
	}
	for _, bits := range t.sizes[family(to)] {
		p, _ := to.Prefix(bits)
		if at := t.to[p]; at != nil {
			return at
		}
	}
	return nil
}

// mayComeFrom tells whether a packet goes from a pod of the node to a pod of this node.
func (t *table) mayComeFrom(packet []byte, node netip.Addr) bool {
	source, to, ok := addressesOf(packet)
	return ok && inside(source, t.from[node]) && inside(to, t.own)
}

func inside(a netip.Addr, networks []netip.Prefix) bool {
	for _, p := range networks {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// addressesOf returns the addresses of an IP packet; ok is false for any other packet.
func addressesOf(packet []byte) (from, to netip.Addr, ok bool) {
	const header4, header6 = 20, 40
	switch {
	case len(packet) >= header4 && packet[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(packet[12:16])), netip.AddrFrom4([4]byte(packet[16:20])), true
	case len(packet) >= header6 && packet[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(packet[8:24])), netip.AddrFrom16([16]byte(packet[24:40])), true
	}
	return from, to, false
}
