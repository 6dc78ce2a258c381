package host

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/mesh"
)

// routeProtocol marks the routes to other nodes' pods as ours (rtm_protocol of rtnetlink): a process that starts finds
// those of the one before it, and Remove finds all.
const routeProtocol = 98

// Facts reads what a plan needs to know of the host.
func (h *Host) Facts() (facts mesh.Facts, err error) {
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
			if h.own(a.Name) {
				continue
			}
			neighbourly[a.Index] = a.Flags&net.FlagBroadcast != 0 && a.Flags&net.FlagPointToPoint == 0 && a.RawFlags&unix.IFF_NOARP == 0
			facts.Links = append(facts.Links, mesh.Link{Index: a.Index, MTU: a.MTU, Addresses: addresses[a.Index]})
		}
		facts.Routes, err = h.routesOver(neighbourly)
		return err
	})
	return facts, err
}

func (h *Host) own(name string) bool {
	return name == h.cfg.Bridge || name == h.cfg.DNSLink || name == h.cfg.Tunnel
}

func (h *Host) addressesByLink() (map[int][]netip.Addr, error) {
	list, err := dump(func() ([]netlink.Addr, error) { return h.link.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, err
	}
	byLink := make(map[int][]netip.Addr)
	for _, a := range list {
		byLink[a.LinkIndex] = append(byLink[a.LinkIndex], prefixOf(a.IPNet).Addr())
	}
	return byLink, nil
}

// routesOver lists the main table's routes over the links given, other than ours. A link's value tells whether its
// neighbours may be gateways.
func (h *Host) routesOver(links map[int]bool) ([]mesh.Route, error) {
	list, err := h.mainTable()
	if err != nil {
		return nil, fmt.Errorf("routes: %w", err)
	}
	var out []mesh.Route
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
		out = append(out, mesh.Route{To: to, Link: index, Metric: r.Priority, Attached: direct && neighbourly})
	}
	return out, nil
}

// destination is where a route leads; one without any leads everywhere.
func destination(r *netlink.Route) netip.Prefix {
	if r.Dst == nil {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return prefixOf(r.Dst)
}

// Connect makes the ways to other nodes' pods what the plan says. What fails keeps nothing else from being made.
func (h *Host) Connect(plan *mesh.Plan) error {
	return h.cfg.Namespace.Do(func() error {
		routes := make(map[netip.Prefix]netlink.Route)
		add := func(pods netip.Prefix, via netip.Addr, link, flags int) {
			routes[pods] = netlink.Route{LinkIndex: link, Dst: netOf(pods), Gw: via.AsSlice(), Flags: flags,
				Protocol: routeProtocol, Type: unix.RTN_UNICAST, Table: unix.RT_TABLE_MAIN}
		}
		for _, g := range plan.Gateways {
			add(g.Pods, g.Via, g.Link, 0)
		}
		index, failed := h.applyTunnel(plan.Tunnel)
		if plan.Tunnel != nil && index != 0 {
			for _, p := range plan.Tunnel.Peers {
				add(p.Pods, p.Address, index, unix.RTNH_F_ONLINK)
			}
		}
		return errors.Join(failed, h.applyWays(routes))
	})
}

// applyWays makes these, and no others, the routes with our mark. A route of somebody else to the same network with the
// same metric is replaced: pod networks are the cluster's.
func (h *Host) applyWays(want map[netip.Prefix]netlink.Route) error {
	have, err := h.mainTable()
	if err != nil {
		return fmt.Errorf("routes to other nodes: %w", err)
	}
	right := make(map[netip.Prefix]struct{}, len(want))
	var stale []netlink.Route
	for _, r := range have {
		to := destination(&r)
		w, wanted := want[to]
		if wanted && sameWay(&w, &r) {
			right[to] = struct{}{}
		} else if r.Protocol == routeProtocol && (!wanted || r.Priority != 0) {
			stale = append(stale, r)
		}
	}
	var errs []error
	for to, r := range want {
		if _, ok := right[to]; ok {
			continue
		}
		if err := h.link.RouteReplace(&r); err != nil {
			errs = append(errs, fmt.Errorf("route to %s via %s: %w", to, r.Gw, err))
			continue
		}
		h.cfg.Logger.Info("route made", "to", to, "via", r.Gw)
	}
	for i := range stale {
		if err := h.link.RouteDel(&stale[i]); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove route to %s: %w", destination(&stale[i]), err))
			continue
		}
		h.cfg.Logger.Info("route removed", "to", destination(&stale[i]), "via", stale[i].Gw)
	}
	return errors.Join(errs...)
}

// sameWay compares a route that is wanted with one that is there. What the kernel tells of the state of the link is no
// difference.
func sameWay(want, have *netlink.Route) bool {
	const state = unix.RTNH_F_DEAD | unix.RTNH_F_LINKDOWN | unix.RTNH_F_OFFLOAD | unix.RTNH_F_TRAP
	return have.LinkIndex == want.LinkIndex && bytes.Equal(have.Gw.To4(), want.Gw.To4()) && have.Flags&^state == want.Flags &&
		have.Protocol == want.Protocol && have.Priority == 0 && have.Tos == 0 && have.Src == nil && len(have.MultiPath) == 0 &&
		have.Type == want.Type && have.MTU == 0
}

// removeWays deletes all routes with our mark.
func removeWays() error {
	list, err := dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return fmt.Errorf("routes to other nodes: %w", err)
	}
	var errs []error
	for i := range list {
		if err := netlink.RouteDel(&list[i]); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove route to %s: %w", destination(&list[i]), err))
		}
	}
	return errors.Join(errs...)
}
