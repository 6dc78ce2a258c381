package routing

import "net/netip"

// Stale is a datagram flow the kernel may remember and must forget, because its backend is gone (Backend valid) or because
// it was remembered when there was no backend at all (Backend invalid).
type Stale struct {
	Protocol Protocol
	// IP is where clients send to; invalid: any address of the node (a node port or host port).
	IP      netip.Addr
	Port    uint16
	Backend netip.AddrPort
}

// StaleFlows compares two tables and lists the flows to forget. Only protocols without connections need it: a TCP
// connection to a backend that is gone ends by itself.
func StaleFlows(old, now *Table) []Stale {
	var out []Stale
	for at, chain := range old.Services {
		out = stale(out, at.Protocol, at.IP, at.Port, old.reach(chain), now.reach(now.Services[at]))
	}
	for at, chain := range old.NodePorts {
		out = stale(out, at.Protocol, netip.Addr{}, at.Port, old.reach(chain), now.reach(now.NodePorts[at]))
	}
	for at := range now.Services {
		if _, was := old.Services[at]; !was && at.Protocol == UDP {
			out = append(out, Stale{Protocol: UDP, IP: at.IP, Port: at.Port})
		}
	}
	for at := range now.NodePorts {
		if _, was := old.NodePorts[at]; !was && at.Protocol == UDP {
			out = append(out, Stale{Protocol: UDP, Port: at.Port})
		}
	}
	return out
}

func stale(out []Stale, p Protocol, ip netip.Addr, port uint16, before, after map[netip.AddrPort]struct{}) []Stale {
	if p != UDP {
		return out
	}
	for b := range before {
		if _, still := after[b]; !still {
			out = append(out, Stale{Protocol: p, IP: ip, Port: port, Backend: b})
		}
	}
	return out
}

// reach is every backend a chain can lead to.
func (t *Table) reach(chain string) map[netip.AddrPort]struct{} {
	set := make(map[netip.AddrPort]struct{})
	for _, r := range t.Chains[chain] {
		for _, b := range r.Balance {
			set[b] = struct{}{}
		}
		if r.Goto != "" {
			for b := range t.reach(r.Goto) {
				set[b] = struct{}{}
			}
		}
	}
	return set
}
