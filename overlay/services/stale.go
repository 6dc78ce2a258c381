package services

import (
	"net/netip"
	"slices"
)

// Stale is a UDP flow whose conntrack entry must be deleted: its backend is gone (Backend valid), or it began while its
// destination had no backend (Backend invalid), and the destination has one now or refuses packets.
type Stale struct {
	Protocol Protocol
	// IP is the address to which clients send; invalid: any address of the node (a node port or host port).
	IP      netip.Addr
	Port    uint16
	Backend netip.AddrPort
}

// flows are the backends of UDP destinations: by address, invalid for a port of the node, and port.
type flows = map[netip.AddrPort][]netip.AddrPort

// connectionless is the protocol whose flows become stale: a TCP connection to a backend that is gone ends by itself.
const connectionless = UDP

// datagrams returns the backends of UDP packets to the addresses and ports in the holdings.
func (p *Plan) datagrams(of ...*holding) flows {
	var out flows
	for _, k := range of {
		for _, at := range k.services {
			if target, there := p.table.Services[at]; there && at.Protocol == connectionless {
				setIn(&out, netip.AddrPortFrom(at.IP, at.Port), p.table.reach(target))
			}
		}
		for _, at := range k.ports {
			if target, there := p.table.Ports[at]; there && at.Protocol == connectionless {
				setIn(&out, netip.AddrPortFrom(netip.Addr{}, at.Port), p.table.reach(target))
			}
		}
	}
	return out
}

// datagrams returns the backends of all UDP destinations.
func (t *Table) datagrams() flows {
	out := make(flows)
	for at, target := range t.Services {
		if at.Protocol == connectionless {
			out[netip.AddrPortFrom(at.IP, at.Port)] = t.reach(target)
		}
	}
	for at, target := range t.Ports {
		if at.Protocol == connectionless {
			out[netip.AddrPortFrom(netip.Addr{}, at.Port)] = t.reach(target)
		}
	}
	return out
}

// staleFlows returns the flows to delete between two states.
func staleFlows(before, after flows) []Stale {
	var out []Stale
	for at, backends := range before {
		for _, b := range without(backends, after[at]) {
			out = append(out, Stale{Protocol: connectionless, IP: at.Addr(), Port: at.Port(), Backend: b})
		}
	}
	for at, backends := range after { // destinations that are refused from now on too, because the kernel applies nat rules once for each flow
		if had, known := before[at]; !known || len(had) == 0 && len(backends) > 0 {
			out = append(out, Stale{Protocol: connectionless, IP: at.Addr(), Port: at.Port()})
		}
	}
	return out
}

// without returns the elements of a that are not in b, in linear time.
func without[T comparable](a, b []T) []T {
	if slices.Equal(a, b) {
		return nil
	}
	in := make(map[T]struct{}, len(b))
	for _, x := range b {
		in[x] = struct{}{}
	}
	var out []T
	for _, x := range a {
		if _, ok := in[x]; !ok {
			out = append(out, x)
		}
	}
	return out
}
