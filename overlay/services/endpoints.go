package services

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
)

// endpoint is one backend with its conditions and hints from the API.
type endpoint struct {
	*discovery.Endpoint
	backend netip.AddrPort
	local   bool
}

func isTrue(b *bool, unset bool) bool {
	if b == nil {
		return unset
	}
	return *b
}

func (e endpoint) ready() bool { return isTrue(e.Conditions.Ready, true) }

// terminating tells whether the endpoint terminates but still serves; such endpoints are used only when no others are left.
func (e endpoint) terminating() bool {
	return isTrue(e.Conditions.Serving, e.ready()) && isTrue(e.Conditions.Terminating, false)
}

// chooseBackends fills in the backends from the service's slices, as KEP-1669 (terminating endpoints), KEP-2433 and KEP-3015
// (hints) say.
func (s *Service) chooseBackends(list []*discovery.EndpointSlice, portName string, view View, note faultList) {
	all := s.endpoints(list, portName, view, note)
	near := hintedBackends(all, view)
	s.Everywhere = pick(all, func(e endpoint) bool { return e.ready() && near(e) })
	if len(s.Everywhere) == 0 {
		s.Everywhere = pick(all, endpoint.terminating)
	}
	s.Here = pick(all, func(e endpoint) bool { return e.local && e.ready() })
	if len(s.Here) == 0 {
		s.Here = pick(all, func(e endpoint) bool { return e.local && e.terminating() })
	}
	s.Local = s.Here
}

// hintedBackends returns the predicate for endpoints whose hints allow this node. Hints of nodes, then hints of zones,
// count if all ready endpoints have some and at least one names this node or zone.
func hintedBackends(all []endpoint, view View) func(endpoint) bool {
	forNode := func(e endpoint) (has, here bool) {
		if e.Hints == nil {
			return false, false
		}
		return len(e.Hints.ForNodes) > 0, slices.ContainsFunc(e.Hints.ForNodes, func(n discovery.ForNode) bool { return n.Name == view.Node })
	}
	forZone := func(e endpoint) (has, here bool) {
		if e.Hints == nil {
			return false, false
		}
		return len(e.Hints.ForZones) > 0, slices.ContainsFunc(e.Hints.ForZones, func(z discovery.ForZone) bool { return z.Name == view.Zone })
	}
	rules := []func(endpoint) (bool, bool){forNode}
	if view.Zone != "" {
		rules = append(rules, forZone)
	}
	for _, rule := range rules {
		every, any := true, false
		for _, e := range all {
			if e.ready() {
				has, here := rule(e)
				every, any = every && has, any || here
			}
		}
		if every && any {
			return func(e endpoint) bool {
				_, here := rule(e)
				return here
			}
		}
	}
	return func(endpoint) bool { return true }
}

func pick(all []endpoint, good func(endpoint) bool) []netip.AddrPort {
	n := 0
	for i := range all {
		if good(all[i]) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	out := make([]netip.AddrPort, 0, n)
	for _, e := range all {
		if good(e) {
			out = append(out, e.backend)
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}

// endpoints returns the endpoints of the port to which packets can be sent.
func (s *Service) endpoints(list []*discovery.EndpointSlice, portName string, view View, note faultList) []endpoint {
	family := discovery.AddressTypeIPv6
	if view.V4 {
		family = discovery.AddressTypeIPv4
	}
	var out []endpoint
	for _, slice := range list {
		if _, others := slice.Labels[v1.IsHeadlessService]; others || slice.AddressType != family {
			continue // the label says that another program handles the slice
		}
		port, ok := slicePort(slice, portName, s.Protocol)
		if !ok {
			continue
		}
		if port < 1 || port > 65535 {
			note.add("endpoint slice %s: %d is no port", slice.Name, port)
			continue
		}
		out = slices.Grow(out, len(slice.Endpoints))
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if len(e.Addresses) == 0 {
				continue
			}
			// Only the first address counts; the API says consumers may ignore the rest.
			a, err := netip.ParseAddr(e.Addresses[0])
			if a = a.Unmap(); err != nil || !view.reachable(a) {
				note.add("endpoint slice %s: address %q cannot be an endpoint's", slice.Name, e.Addresses[0])
				continue
			}
			out = append(out, endpoint{e, netip.AddrPortFrom(a, uint16(port)), e.NodeName != nil && *e.NodeName == view.Node})
		}
	}
	return out
}

// reachable reports whether an endpoint may have the address. Endpoints in the node's loopback range or at another
// Service's address are refused, because packets to them would bypass the rules that protect these addresses.
func (v *View) reachable(a netip.Addr) bool {
	return usable(a) && a.Is4() == v.V4 && !slices.ContainsFunc(v.Services, func(p netip.Prefix) bool { return p.Contains(a) })
}

func slicePort(slice *discovery.EndpointSlice, name string, protocol Protocol) (int32, bool) {
	for i := range slice.Ports {
		p := &slice.Ports[i]
		portName, portProtocol := "", v1.ProtocolTCP
		if p.Name != nil {
			portName = *p.Name
		}
		if p.Protocol != nil {
			portProtocol = *p.Protocol
		}
		if p.Port != nil && portName == name && ParseProtocol(portProtocol) == protocol {
			return *p.Port, true
		}
	}
	return 0, false
}
