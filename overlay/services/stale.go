package services

import (
	"net/netip"
	"slices"
)

// Stale is a datagram flow the kernel may remember and must forget, because its backend is gone (Backend valid) or because
// it was remembered when it was led nowhere (Backend invalid): now it is led somewhere, or refused.
type Stale struct {
	Protocol Protocol
	// IP is where clients send to; invalid: any address of the node (a node port or host port).
	IP      netip.Addr
	Port    uint16
	Backend netip.AddrPort
}

// flows are where datagrams go: by address, invalid for a port of the node, and port.
type flows = map[netip.AddrPort][]netip.AddrPort

// Only protocols without connections need this: a TCP connection to a backend that is gone ends by itself.
const connectionless = UDP

// datagrams lists where the table leads the datagrams of what an owner had and has.
func (p *Plan) datagrams(of ...*kept) flows {
	var out flows
	for _, k := range of {
		for _, at := range k.services {
			if target, there := p.table.Services[at]; there && at.Protocol == connectionless {
				put(&out, netip.AddrPortFrom(at.IP, at.Port), p.table.reach(target))
			}
		}
		for _, at := range k.ports {
			if target, there := p.table.Ports[at]; there && at.Protocol == connectionless {
				put(&out, netip.AddrPortFrom(netip.Addr{}, at.Port), p.table.reach(target))
			}
		}
	}
	return out
}

// datagrams lists where the table leads all datagrams.
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

// staleFlows lists the flows to forget between two states.
func staleFlows(before, after flows) []Stale {
	var out []Stale
	for at, backends := range before {
		for _, b := range without(backends, after[at]) {
			out = append(out, Stale{Protocol: connectionless, IP: at.Addr(), Port: at.Port(), Backend: b})
		}
	}
	for at, backends := range after { // what begins to be refused too: the kernel asks once for each flow
		if had, known := before[at]; !known || len(had) == 0 && len(backends) > 0 {
			out = append(out, Stale{Protocol: connectionless, IP: at.Addr(), Port: at.Port()})
		}
	}
	return out
}

// without lists what of a is not in b, in a time that does not grow with the product of their lengths.
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
