package host

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/routes"
)

// routeProtocol marks the overlay's routes to other nodes' pods (rtm_protocol of rtnetlink), so that a process finds the
// routes of the process before it, and Remove finds all.
const routeProtocol = 98

// metric6 is the metric of the overlay's IPv6 routes: the kernel's default.
const metric6 = 1024

// Connect replaces the routes to other nodes' pods by those of the plan. A failure does not keep the other routes from
// being made.
func (h *Host) Connect(plan *routes.Plan) error {
	return h.cfg.Namespace.Do(func() error {
		routes := make(map[netip.Prefix]netlink.Route)
		for _, g := range plan.Gateways {
			r := baseRoute(g.Pods, g.Link)
			r.Gw = g.Via.AsSlice()
			routes[g.Pods] = r
		}
		index, failed := h.applyTunnel(plan.Tunnel)
		if plan.Tunnel != nil && index != 0 {
			for i := range plan.Tunnel.Peers {
				routes[plan.Tunnel.Peers[i].Pods] = tunnelRoute(plan.Tunnel, i, index)
			}
		}
		return errors.Join(failed, h.applyNodeRoutes(routes))
	})
}

func baseRoute(pods netip.Prefix, link int) netlink.Route {
	r := netlink.Route{LinkIndex: link, Dst: netOf(pods), Protocol: routeProtocol, Type: unix.RTN_UNICAST, Table: unix.RT_TABLE_MAIN}
	if pods.Addr().Is6() {
		r.Priority = metric6
	}
	return r
}

// tunnelRoute returns the route to a peer of the tunnel: through the peer's address inside, or where there are no such addresses,
// as if its pods were on the link.
func tunnelRoute(t *routes.Tunnel, peer, link int) netlink.Route {
	p := &t.Peers[peer]
	r := baseRoute(p.Pods, link)
	r.MTU = p.MTU
	v4 := p.Pods.Addr().Is4()
	if !t.Relayed {
		r.Gw = p.Address.AsSlice()
		if v4 {
			r.Flags = unix.RTNH_F_ONLINK
		}
	} else if v4 {
		r.Scope = netlink.SCOPE_LINK
	}
	if !v4 {
		r.Src = t.Source6.AsSlice()
	}
	return r
}

// applyNodeRoutes makes want the only routes marked with routeProtocol. A route of another program to the same network with
// the same metric is replaced, because pod networks belong to the cluster.
func (h *Host) applyNodeRoutes(want map[netip.Prefix]netlink.Route) error {
	have, err := h.mainTables()
	if err != nil {
		return fmt.Errorf("routes to other nodes: %w", err)
	}
	right := make(map[netip.Prefix]struct{}, len(want))
	var stale []netlink.Route
	for _, r := range have {
		to := destination(&r)
		w, wanted := want[to]
		if wanted && sameRoute(&w, &r) {
			right[to] = struct{}{}
		} else if r.Protocol == routeProtocol && (!wanted || r.Priority != w.Priority) {
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
		h.cfg.Logger.Info("route to a node's pods made", "to", to, "via", r.Gw, "mtu", r.MTU)
	}
	for i := range stale {
		if err := h.link.RouteDel(&stale[i]); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove route to %s: %w", destination(&stale[i]), err))
			continue
		}
		h.cfg.Logger.Info("route to a node's pods removed", "to", destination(&stale[i]), "via", stale[i].Gw)
	}
	return errors.Join(errs...)
}

// sameRoute compares a wanted route with an existing one. The state of the link, which the kernel adds, is no difference.
func sameRoute(want, have *netlink.Route) bool {
	const state = unix.RTNH_F_DEAD | unix.RTNH_F_LINKDOWN | unix.RTNH_F_OFFLOAD | unix.RTNH_F_TRAP
	return have.LinkIndex == want.LinkIndex && addressFrom(have.Gw) == addressFrom(want.Gw) && have.Flags&^state == want.Flags &&
		have.Protocol == want.Protocol && have.Priority == want.Priority && have.Tos == 0 &&
		addressFrom(have.Src) == addressFrom(want.Src) && len(have.MultiPath) == 0 && have.Type == want.Type && have.MTU == want.MTU
}

// removeNodeRoutes deletes all routes marked with routeProtocol, in the namespace of the calling thread.
func removeNodeRoutes() error {
	var errs []error
	for _, family := range families {
		list, err := dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("routes to other nodes: %w", err))
		}
		for i := range list {
			if err := netlink.RouteDel(&list[i]); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("remove route to %s: %w", destination(&list[i]), err))
			}
		}
	}
	return errors.Join(errs...)
}
