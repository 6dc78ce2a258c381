package host

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/routes"
)

// Facts reads the host's links and routes for a plan.
func (h *Host) Facts() (facts routes.Facts, err error) {
	err = h.cfg.Namespace.Do(func() error {
		links, err := dump(h.link.LinkList)
		if err != nil {
			return fmt.Errorf("links: %w", err)
		}
		addresses, err := h.addressesByLink()
		if err != nil {
			return fmt.Errorf("addresses: %w", err)
		}
		neighbourly := make(map[int]bool, len(links))
		for _, l := range links {
			a := l.Attrs()
			if h.isOwnLink(a.Name) {
				continue
			}
			neighbourly[a.Index] = a.Flags&net.FlagBroadcast != 0 && a.Flags&net.FlagPointToPoint == 0 && a.RawFlags&unix.IFF_NOARP == 0
			facts.Links = append(facts.Links, routes.Link{Index: a.Index, MTU: a.MTU, Addresses: addresses[a.Index]})
		}
		facts.Routes, err = h.routesOver(neighbourly)
		return err
	})
	return facts, err
}

func (h *Host) isOwnLink(name string) bool {
	return name != "" && (name == h.cfg.Bridge || name == h.cfg.DNSLink || name == h.cfg.Tunnel || name == h.cfg.Relay)
}

func (h *Host) addressesByLink() (map[int][]netip.Addr, error) {
	list, err := dump(func() ([]netlink.Addr, error) { return h.link.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	byLink := make(map[int][]netip.Addr)
	for _, a := range list {
		byLink[a.LinkIndex] = append(byLink[a.LinkIndex], prefixOf(a.IPNet).Addr())
	}
	return byLink, nil
}

// routesOver returns the main tables' routes over these links, without the overlay's own routes. The value in links says
// whether a link's neighbours may be gateways.
func (h *Host) routesOver(links map[int]bool) ([]routes.Route, error) {
	list, err := h.mainTables()
	if err != nil {
		return nil, fmt.Errorf("routes: %w", err)
	}
	var out []routes.Route
	for i := range list {
		r := &list[i]
		to, index := destination(r), r.LinkIndex
		if len(r.MultiPath) > 0 {
			index = r.MultiPath[0].LinkIndex
		}
		neighbourly, ok := links[index]
		if !ok || r.Type != unix.RTN_UNICAST || r.Protocol == routeProtocol {
			continue
		}
		direct := len(r.MultiPath) == 0 && len(r.Gw) == 0 && r.Via == nil && r.Encap == nil
		out = append(out, routes.Route{To: to, Link: index, Metric: r.Priority, Attached: direct && neighbourly})
	}
	return out, nil
}

// destination returns the network to which a route leads; the default route leads to all addresses.
func destination(r *netlink.Route) netip.Prefix {
	switch {
	case r.Dst != nil:
		return prefixOf(r.Dst)
	case r.Family == netlink.FAMILY_V6:
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}
