package routes

import (
	"fmt"
	"net/netip"
	"slices"
)

// Static is a route that leads to a node's pods by the node's own address.
type Static struct {
	Node string
	Pods netip.Prefix
	Via  netip.Addr
}

// Export returns the routes that a router outside the cluster, such as a BGP speaker, needs to reach the pods of all nodes,
// ordered by network; networks are the cluster's pod networks. Faults say, for people, which nodes are left out and why. A
// node without a pod network, or without any address yet, is left out without a fault.
func Export(networks []netip.Prefix, nodes []Node) (routes []Static, faults []string) {
	b := builder{cfg: Config{Networks: networks}, plan: &Plan{}}
	for _, n := range b.admit(nodes) {
		for _, pods := range []netip.Prefix{n.Pods, n.Pods6} {
			via := n.address(pods.Addr().Is4())
			switch {
			case !pods.IsValid() || !n.Address.IsValid() && !n.Address6.IsValid():
			case !via.IsValid():
				b.fault("node %s has pod network %s, but no address of its family: these pods are not reached", n.Name, pods)
			default:
				routes = append(routes, Static{Node: n.Name, Pods: pods, Via: via})
			}
		}
	}
	slices.SortFunc(routes, func(x, y Static) int { return x.Pods.Addr().Compare(y.Pods.Addr()) })
	return routes, b.plan.Faults
}

func (b *builder) fault(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(b.plan.Faults, text) {
		b.plan.Faults = append(b.plan.Faults, text)
	}
}

// admit returns the nodes, the oldest first, with only those networks and addresses that are valid and their own. A network or
// an address that two nodes claim stays with the one that had it first, so a misconfigured node takes nothing from one that
// works.
func (b *builder) admit(nodes []Node) []Node {
	sorted := slices.SortedFunc(slices.Values(nodes), oldestFirst)
	taken := newClaims()
	for i := range sorted {
		n := &sorted[i]
		if n.Name == b.cfg.Self {
			b.self = *n
		}
		for _, pods := range []*netip.Prefix{&n.Pods, &n.Pods6} {
			if pods.IsValid() && !b.admitNetwork(n.Name, *pods, taken) {
				*pods = netip.Prefix{}
			}
		}
		if n.Key != (Key{}) && !b.admitKey(n.Name, n.Key, taken) {
			n.Pods, n.Pods6 = netip.Prefix{}, netip.Prefix{}
		}
		for _, a := range []*netip.Addr{&n.Address, &n.Address6} {
			if a.IsValid() && !b.admitAddress(n.Name, *a, taken) {
				*a = netip.Addr{}
			}
		}
	}
	return sorted
}

func (b *builder) admitNetwork(name string, pods netip.Prefix, taken *claims) bool {
	if !within(pods, b.cfg.Networks) {
		b.fault("node %s has pod network %s, which is not in the cluster's: its pods are not reached", name, pods)
		return false
	}
	other, ok := taken.claim(pods, name)
	if !ok {
		b.fault("node %s has pod network %s, which overlaps that of node %s, which had it first: the pods of %s are not reached",
			name, pods, other, name)
	}
	return ok
}

// admitAddress tells whether the address can be sent to, and is the node's own.
func (b *builder) admitAddress(name string, a netip.Addr, taken *claims) bool {
	if a.IsLoopback() || a.IsMulticast() || a.IsUnspecified() || within(netip.PrefixFrom(a, a.BitLen()), b.cfg.Networks) {
		b.fault("node %s has the address %s, which cannot be a node's: its pods are not reached", name, a)
		return false
	}
	other, ok := taken.claimAddress(a, name)
	if !ok {
		b.fault("node %s has the address %s of node %s, which had it first: the pods of %s are not reached; delete the Node "+
			"that is gone, or give one of them another address", name, a, other, name)
	}
	return ok
}

func within(p netip.Prefix, networks []netip.Prefix) bool {
	return slices.ContainsFunc(networks, func(around netip.Prefix) bool {
		return around.Bits() <= p.Bits() && around.Contains(p.Addr())
	})
}
