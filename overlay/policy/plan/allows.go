package plan

import "net/netip"

// Flow is a connection, as in its first packet after the address of a Service was replaced by a backend's.
type Flow struct {
	From, To netip.Addr
	Protocol Protocol
	Port     uint16 // the destination port
}

// Isolated tells whether an address belongs to a pod of this node that a policy isolates.
func (s *State) Isolated(a netip.Addr) bool {
	_, judged := s.layout.self[a]
	return judged
}

// Allows tells whether the policies of this node's pods let a flow pass, as of the last Change.
func (s *State) Allows(f Flow) bool {
	return f.From == f.To || s.allows(Egress, f.From, f.To, f) && s.allows(Ingress, f.To, f.From, f)
}

func (s *State) allows(d Direction, judged, peer netip.Addr, f Flow) bool {
	p := s.owners[judged]
	if p == nil || !p.Local {
		return true
	}
	applied := isolatingPolicies(p, s.policies[p.Namespace], d)
	for _, policy := range applied {
		for i := range policy.rules[d] {
			if r := &policy.rules[d][i]; s.atPort(r, f) && s.withPeer(r, peer) {
				return true
			}
		}
	}
	return len(applied) == 0
}

func (s *State) withPeer(r *rule, a netip.Addr) bool {
	for _, ranges := range r.ranges {
		if ranges.contains(a) {
			return true
		}
	}
	if p := s.owners[a]; p != nil {
		space, known := s.spaces[p.Namespace]
		for i := range r.groups {
			if r.groups[i].matches(p, space, known) {
				return true
			}
		}
	}
	return r.anyPeer
}

func (s *State) atPort(r *rule, f Flow) bool {
	for _, p := range r.ports {
		switch {
		case p.protocol != f.Protocol:
		case p.name == "" && p.from <= f.Port && f.Port <= p.to:
			return true
		case p.name != "":
			if to := s.owners[f.To]; to != nil {
				for _, have := range to.Ports {
					if have == (NamedPort{p.name, p.protocol, f.Port}) {
						return true
					}
				}
			}
		}
	}
	return r.anyPort
}
