package routing

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
)

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols a service can have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// ParseProtocol maps the API's name to the number; unknown names are TCP, the API's default.
func ParseProtocol(p v1.Protocol) Protocol {
	switch p {
	case v1.ProtocolUDP:
		return UDP
	case v1.ProtocolSCTP:
		return SCTP
	}
	return TCP
}

// Service is one port of one Service in one address family, with the backends to choose from.
type Service struct {
	Name         string // "namespace/name:port", for people
	Protocol     Protocol
	Port         uint16
	NodePort     uint16 // 0: none
	ClusterIPs   []netip.Addr
	ExternalIPs  []netip.Addr
	LoadBalancer []netip.Addr
	// Sources are who may use the load balancer's addresses; empty: everybody.
	Sources []netip.Prefix
	// Everywhere are the backends of the policy Cluster, Here those of the policy Local. Both are sorted.
	Everywhere, Here []netip.AddrPort
	// Local are the backends, of either list, that run on this node.
	Local []netip.AddrPort
	// InternalLocal and ExternalLocal are the traffic policies.
	InternalLocal, ExternalLocal bool
	// Affinity is how long a client stays with its backend; 0: not at all.
	Affinity time.Duration
}

// Services works out the service ports of one family (v4 or not) as seen from the node.
func Services(services []*v1.Service, list []*discovery.EndpointSlice, node string, v4 bool) []Service {
	bySvc := make(map[string][]*discovery.EndpointSlice)
	want := discovery.AddressTypeIPv6
	if v4 {
		want = discovery.AddressTypeIPv4
	}
	for _, s := range list {
		if s.AddressType == want {
			key := s.Namespace + "/" + s.Labels[discovery.LabelServiceName]
			bySvc[key] = append(bySvc[key], s)
		}
	}
	var out []Service
	for _, svc := range services {
		if !routed(svc) {
			continue
		}
		for i := range svc.Spec.Ports {
			s := newService(svc, &svc.Spec.Ports[i], v4)
			if len(s.ClusterIPs)+len(s.ExternalIPs)+len(s.LoadBalancer) == 0 {
				continue
			}
			s.choose(bySvc[svc.Namespace+"/"+svc.Name], svc.Spec.Ports[i].Name, node)
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b Service) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// routed tells whether packets to the service need routing at all; some services ask to be left to others by a label.
func routed(svc *v1.Service) bool {
	if svc.Spec.Type == v1.ServiceTypeExternalName || svc.Spec.ClusterIP == "" || svc.Spec.ClusterIP == v1.ClusterIPNone {
		return false
	}
	_, others := svc.Labels["service.kubernetes.io/service-proxy-name"]
	return !others
}

func newService(svc *v1.Service, port *v1.ServicePort, v4 bool) Service {
	s := Service{
		Name:          svc.Namespace + "/" + svc.Name + ":" + port.Name + "/" + string(port.Protocol),
		Protocol:      ParseProtocol(port.Protocol),
		Port:          uint16(port.Port),
		NodePort:      uint16(port.NodePort),
		InternalLocal: svc.Spec.InternalTrafficPolicy != nil && *svc.Spec.InternalTrafficPolicy == v1.ServiceInternalTrafficPolicyLocal,
		ExternalLocal: svc.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal,
	}
	ips := svc.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{svc.Spec.ClusterIP}
	}
	s.ClusterIPs = family(ips, v4)
	s.ExternalIPs = family(svc.Spec.ExternalIPs, v4)
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if in.IPMode == nil || *in.IPMode == v1.LoadBalancerIPModeVIP {
			s.LoadBalancer = append(s.LoadBalancer, family([]string{in.IP}, v4)...)
		}
	}
	for _, r := range svc.Spec.LoadBalancerSourceRanges {
		if p, err := netip.ParsePrefix(r); err == nil && p.Addr().Is4() == v4 {
			s.Sources = append(s.Sources, p.Masked())
		}
	}
	if svc.Spec.SessionAffinity == v1.ServiceAffinityClientIP {
		s.Affinity = time.Duration(v1.DefaultClientIPServiceAffinitySeconds) * time.Second
		if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			s.Affinity = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
		}
	}
	if len(s.ClusterIPs) == 0 {
		s.NodePort = 0 // the service does not exist in this family
	}
	return s
}

func family(ips []string, v4 bool) []netip.Addr {
	var out []netip.Addr
	for _, ip := range ips {
		if a, err := netip.ParseAddr(ip); err == nil && a.Unmap().Is4() == v4 {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// endpoints are the candidates of one policy: those that are ready, and those that are on their way out but still serve,
// used only when no other is left.
type endpoints struct{ ready, leaving []netip.AddrPort }

func (e *endpoints) pick() []netip.AddrPort {
	chosen := e.ready
	if len(chosen) == 0 {
		chosen = e.leaving
	}
	slices.SortFunc(chosen, netip.AddrPort.Compare)
	return slices.Compact(chosen)
}

// choose fills in the backends from the service's slices.
func (s *Service) choose(list []*discovery.EndpointSlice, portName, node string) {
	var everywhere, here endpoints
	for _, slice := range list {
		port := slicePort(slice, portName, s.Protocol)
		if port == 0 {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			local := e.NodeName != nil && *e.NodeName == node
			for _, backend := range backends(e, port) {
				everywhere.add(e, backend)
				if local {
					here.add(e, backend)
				}
			}
		}
	}
	s.Everywhere, s.Here = everywhere.pick(), here.pick()
	s.Local = s.Here
	if len(s.Local) == 0 {
		s.Local = nil
	}
}

func (e *endpoints) add(ep *discovery.Endpoint, backend netip.AddrPort) {
	isTrue := func(b *bool, unset bool) bool {
		if b == nil {
			return unset
		}
		return *b
	}
	ready := isTrue(ep.Conditions.Ready, true)
	switch {
	case ready:
		e.ready = append(e.ready, backend)
	case isTrue(ep.Conditions.Serving, ready) && isTrue(ep.Conditions.Terminating, false):
		e.leaving = append(e.leaving, backend)
	}
}

func backends(e *discovery.Endpoint, port uint16) []netip.AddrPort {
	if len(e.Addresses) == 0 {
		return nil
	}
	// Only the first address counts; the API says consumers may ignore the rest.
	a, err := netip.ParseAddr(e.Addresses[0])
	if err != nil {
		return nil
	}
	return []netip.AddrPort{netip.AddrPortFrom(a.Unmap(), port)}
}

func slicePort(slice *discovery.EndpointSlice, name string, protocol Protocol) uint16 {
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
			return uint16(*p.Port)
		}
	}
	return 0
}
