package ingress

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"github.com/balsahq/balsa/overlay/ingress/plan"
)

// Label of a Node: with "true" on at least one Node only these serve; a Node with "false" does not serve.
const Label = "balsa.dev/ingress"

// mostAddresses is how many addresses a status names at most; the Gateway API allows no more.
const mostAddresses = 16

// serving are the nodes that serve.
func serving(nodes []*v1.Node) (out []*v1.Node) {
	chosen := slices.ContainsFunc(nodes, func(n *v1.Node) bool { return n.Labels[Label] == "true" })
	for _, n := range nodes {
		if v := n.Labels[Label]; v == "true" || !chosen && v != "false" {
			out = append(out, n)
		}
	}
	return out
}

// addresses returns the addresses of the serving nodes that are ready: a node's external addresses, or else its internal
// ones.
func addresses(nodes []*v1.Node) (out []string) {
	ready := slices.DeleteFunc(serving(nodes), func(n *v1.Node) bool {
		return n.DeletionTimestamp != nil || !slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
			return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
		})
	})
	slices.SortFunc(ready, func(a, b *v1.Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range ready {
		found := of(n, v1.NodeExternalIP)
		if len(found) == 0 {
			found = of(n, v1.NodeInternalIP)
		}
		for _, a := range found {
			if len(out) < mostAddresses && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	return out
}

func of(n *v1.Node, kind v1.NodeAddressType) (out []string) {
	for _, a := range n.Status.Addresses {
		if _, err := netip.ParseAddr(a.Address); err == nil && a.Type == kind {
			out = append(out, a.Address)
		}
	}
	return out
}

// endpointsOf returns the endpoints of a backend: the ready ones or, if there are none, the terminating ones that still
// serve, as for Services. For a Service of two families it returns the IPv4 addresses.
func endpointsOf(b plan.Backend, slicesOf []*discovery.EndpointSlice) []netip.AddrPort {
	var ready, ending [2][]netip.AddrPort // IPv4, IPv6
	for _, s := range slicesOf {
		family := map[discovery.AddressType]int{discovery.AddressTypeIPv4: 0, discovery.AddressTypeIPv6: 1}
		f, known := family[s.AddressType]
		port, ok := portOf(b.Port, s.Ports)
		if !known || !ok {
			continue
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			into := &ready[f]
			switch c := e.Conditions; {
			case c.Ready == nil || *c.Ready:
			case c.Serving != nil && *c.Serving && c.Terminating != nil && *c.Terminating:
				into = &ending[f]
			default:
				continue
			}
			if len(e.Addresses) == 0 {
				continue
			}
			if a, err := netip.ParseAddr(e.Addresses[0]); err == nil { // the API says that consumers use the first address only
				*into = append(*into, netip.AddrPortFrom(a, port))
			}
		}
	}
	for _, list := range [][]netip.AddrPort{ready[0], ready[1], ending[0], ending[1]} {
		if len(list) > 0 {
			slices.SortFunc(list, netip.AddrPort.Compare)
			return slices.Compact(list)
		}
	}
	return nil
}

func portOf(name string, ports []discovery.EndpointPort) (uint16, bool) {
	for i := range ports {
		has := ""
		if ports[i].Name != nil {
			has = *ports[i].Name
		}
		tcp := ports[i].Protocol == nil || *ports[i].Protocol == v1.ProtocolTCP
		if has == name && tcp && ports[i].Port != nil && *ports[i].Port > 0 && *ports[i].Port < 1<<16 {
			return uint16(*ports[i].Port), true
		}
	}
	return 0, false
}
