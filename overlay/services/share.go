package services

import "net/netip"

// share is one owner's part of a table.
type share struct {
	services []targetAt[Address]
	ports    []targetAt[NodePort]
	groups   []groupOf
	guards   map[string][]netip.Prefix
	hairpin  []netip.Addr
}

type targetAt[K comparable] struct {
	at K
	Target
}

type groupOf struct {
	id GroupID
	Group
}

func (s *share) at(a Address, t Target) {
	if t != (Target{}) {
		s.services = append(s.services, targetAt[Address]{a, t})
	}
}

func (s *share) atPort(p NodePort, t Target) {
	if t != (Target{}) {
		s.ports = append(s.ports, targetAt[NodePort]{p, t})
	}
}

// group adds a group of backends and returns its Lead, without Where and Source.
func (s *share) group(svc *Service, which string, backends []netip.AddrPort) Lead {
	if len(backends) == 0 {
		return Lead{}
	}
	id := groupID(svc.Name, which)
	s.groups = append(s.groups, groupOf{id, Group{Backends: backends, Sticky: svc.Affinity > 0}})
	return Lead{Group: id, Way: Way{Backends: uint32(len(backends)), Sticky: uint32(svc.Affinity.Seconds())}}
}

func (l Lead) from(w Where, s Source) Lead {
	if l.HasBackends() {
		l.Way.Where, l.Way.Source = w, s
	}
	return l
}

// addService adds one port of a service.
func (s *share) addService(svc *Service) {
	for _, b := range svc.Local {
		s.hairpin = append(s.hairpin, b.Addr())
	}
	external := len(svc.ExternalIPs)+len(svc.LoadBalancer) > 0 || svc.NodePort != 0
	var everywhere, here Lead
	if !svc.InternalLocal || external {
		everywhere = s.group(svc, "all", svc.Everywhere)
	}
	if svc.InternalLocal || external && svc.ExternalLocal {
		here = s.group(svc, "here", svc.Here)
	}
	internal := Target{Lead: everywhere.from(AtAddress, HideOutside)}
	if svc.InternalLocal {
		internal.Lead = here.from(AtAddress, HideOutside)
	}
	internal.Refusal = svc.refusal(internal.Lead)
	for _, ip := range svc.ClusterIPs {
		t := internal
		if svc.isOwnAddress(ip) {
			t.Refusal = NoRefusal
		}
		s.at(Address{ip, svc.Protocol, svc.Port}, t)
	}
	if external {
		s.addExternal(svc, everywhere, here)
	}
}

// addExternal adds the addresses and ports for clients outside the cluster. Under the policy Cluster the source is hidden, so
// that answers come back through this node. Under Local it is kept; pods and the node itself may still use backends elsewhere.
func (s *share) addExternal(svc *Service, everywhere, here Lead) {
	make := func(at, outside Where) Target {
		if !svc.ExternalLocal || !everywhere.HasBackends() {
			t := Target{Lead: everywhere.from(at, HideAll)}
			t.Refusal = svc.refusal(t.Lead)
			return t
		}
		return Target{Lead: everywhere.from(at, Apart), Outside: here.from(outside, Keep)}
	}
	open := make(AtAddress, AtAddressOutside)
	for _, ip := range svc.ExternalIPs {
		s.at(Address{ip, svc.Protocol, svc.Port}, open)
	}
	guarded := open
	if len(svc.Sources) > 0 && open.Lead.HasBackends() {
		guarded.Guard = guardName(svc.Sources)
		if s.guards == nil {
			s.guards = map[string][]netip.Prefix{}
		}
		s.guards[guarded.Guard] = svc.Sources
	}
	for _, ip := range svc.LoadBalancer {
		s.at(Address{ip, svc.Protocol, svc.Port}, guarded)
	}
	if svc.NodePort != 0 {
		s.atPort(NodePort{svc.Protocol, svc.NodePort}, make(AtPort, AtPortOutside))
	}
}

// refusal returns how packets without a backend are refused: dropped if the traffic policy excludes backends of other
// nodes, else rejected.
func (s *Service) refusal(l Lead) Refusal {
	switch {
	case l.HasBackends():
		return NoRefusal
	case len(s.Everywhere) > 0:
		return Drop
	}
	return Reject
}

// addHostPort maps a host port to its pod. Packets from the node itself are masqueraded, because the answer to a loopback
// address would be lost.
func (s *share) addHostPort(h *HostPort) {
	s.hairpin = append(s.hairpin, h.Backend.Addr())
	where := AtPort
	if h.Address.IsValid() {
		where = AtAddress
	}
	id := groupID("host port "+h.Pod, h.Backend.String()+" "+h.Protocol.String())
	s.groups = append(s.groups, groupOf{id, Group{Backends: []netip.AddrPort{h.Backend}}})
	t := Target{Lead: Lead{Group: id, Way: Way{Where: where, Source: HideNode, Backends: 1}}}
	if h.Address.IsValid() {
		s.at(Address{h.Address, h.Protocol, h.Port}, t)
		return
	}
	s.atPort(NodePort{h.Protocol, h.Port}, t)
}
