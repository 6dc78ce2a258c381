package routes

import (
	"net/netip"
	"slices"
)

// Facts are the links and routes of this host that a plan depends on. The overlay's own are left out.
type Facts struct {
	Links  []Link
	Routes []Route // of the main table, both families
	// Paths are the sizes of the largest packets that were seen to reach nodes, in bytes with all headers, by the node's
	// address. For a node that is not in it, the link's MTU counts.
	Paths map[netip.Addr]int
}

// Link is a link of the host.
type Link struct {
	Index     int
	MTU       int // bytes
	Addresses []netip.Addr
}

// Route is a route of the host.
type Route struct {
	To     netip.Prefix
	Link   int // index
	Metric int
	// Attached: hosts in To are neighbours on the link, and the link is one on which any neighbour may be a gateway
	// (Ethernet is, a point-to-point link is not).
	Attached bool
}

// routes finds the route to an address.
type routes struct {
	best map[netip.Prefix]Route
	bits []int // the lengths of prefixes there are, the longest first
}

func newRoutes(list []Route) routes {
	m := routes{best: make(map[netip.Prefix]Route, len(list))}
	for _, r := range list {
		if have, ok := m.best[r.To]; !ok || r.Metric < have.Metric {
			m.best[r.To] = r
		}
		if !slices.Contains(m.bits, r.To.Bits()) {
			m.bits = append(m.bits, r.To.Bits())
		}
	}
	slices.Sort(m.bits)
	slices.Reverse(m.bits)
	return m
}

// lookup returns the route to an address: the one with the longest prefix.
func (m routes) lookup(a netip.Addr) (r Route, ok bool) {
	for _, bits := range m.bits {
		if r, ok = m.best[netip.PrefixFrom(a, bits).Masked()]; ok {
			return r, true
		}
	}
	return Route{}, false
}

// uplinkMTU returns the MTU of the link with this address, else of the link with the default route, else 1500.
func (f *Facts) uplinkMTU(address netip.Addr, m routes) int {
	const ethernet = 1500
	unspecified := netip.IPv4Unspecified()
	if address.Is6() {
		unspecified = netip.IPv6Unspecified()
	}
	everywhere, _ := m.lookup(unspecified)
	mtu := ethernet
	for _, l := range f.Links {
		if l.MTU <= 0 {
			continue
		}
		if slices.Contains(l.Addresses, address) {
			return l.MTU
		}
		if l.Index == everywhere.Link {
			mtu = l.MTU
		}
	}
	return mtu
}

// has tells whether the host has the address.
func (f *Facts) has(address netip.Addr) bool {
	return slices.ContainsFunc(f.Links, func(l Link) bool { return slices.Contains(l.Addresses, address) })
}
