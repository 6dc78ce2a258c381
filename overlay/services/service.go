package services

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
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

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return strconv.Itoa(int(p))
}

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

// View is the node and the address family for which services are planned.
type View struct {
	V4         bool
	Node, Zone string // the node's name, and its label topology.kubernetes.io/zone
	// Services are the networks of service addresses, in which no endpoint may be.
	Services []netip.Prefix
	// Reserved are addresses that Services cannot take with their fields; nil: none.
	Reserved *Reserved
	// Own are service addresses at which a program of this node answers, such as its DNS server.
	Own []netip.Addr
}

// Service is one port of one Service in one address family, with the backends to choose from.
type Service struct {
	Name         string // "namespace/name:port/protocol"
	Protocol     Protocol
	Port         uint16
	NodePort     uint16 // 0: none
	ClusterIPs   []netip.Addr
	ExternalIPs  []netip.Addr
	LoadBalancer []netip.Addr
	// Sources are the networks whose clients may use the load balancer's addresses; empty: all clients.
	Sources []netip.Prefix
	// Everywhere are the backends of the policy Cluster, Here those of the policy Local. Both are sorted.
	Everywhere, Here []netip.AddrPort
	// Local are the backends, of either list, that run on this node.
	Local []netip.AddrPort
	// InternalLocal and ExternalLocal are the traffic policies.
	InternalLocal, ExternalLocal bool
	// Affinity is how long a client stays with its backend; 0: no affinity.
	Affinity time.Duration

	own []netip.Addr
}

// isOwnAddress tells whether this node itself answers at a service address.
func (s *Service) isOwnAddress(ip netip.Addr) bool { return slices.Contains(s.own, ip) }

// Ports returns the ports of a Service with the backends of its EndpointSlices. Invalid parts are left out, and named in
// faults: the API server refuses most of them, but one bad object must not keep the others from being routed.
func Ports(svc *v1.Service, list []*discovery.EndpointSlice, view View) (out []Service, faults []string) {
	if !routed(svc) {
		return nil, nil
	}
	note := faultList{list: &faults}
	of := commonFields(svc, view, note)
	if len(of.ClusterIPs)+len(of.ExternalIPs)+len(of.LoadBalancer) == 0 {
		return nil, faults
	}
	for i := range svc.Spec.Ports {
		port := &svc.Spec.Ports[i]
		if port.Port < 1 || port.Port > 65535 || port.NodePort < 0 || port.NodePort > 65535 {
			note.add("port %d (node port %d) is no port", port.Port, port.NodePort)
			continue
		}
		s := of
		s.Name = svc.Namespace + "/" + svc.Name + ":" + port.Name + "/" + string(port.Protocol)
		s.Protocol, s.Port, s.NodePort = ParseProtocol(port.Protocol), uint16(port.Port), uint16(port.NodePort)
		if len(s.ClusterIPs) == 0 {
			s.NodePort = 0 // the service does not exist in this family
		}
		s.chooseBackends(list, port.Name, view, note)
		out = append(out, s)
	}
	return out, faults
}

// faultList collects distinct faults, up to a bound.
type faultList struct{ list *[]string }

func (f faultList) add(format string, args ...any) {
	const most = 8
	text := fmt.Sprintf(format, args...)
	if len(*f.list) < most && !slices.Contains(*f.list, text) {
		*f.list = append(*f.list, text)
	}
}

// routed reports whether the Service needs rules. The label service.kubernetes.io/service-proxy-name leaves a Service to
// another program.
func routed(svc *v1.Service) bool {
	if svc.Spec.Type == v1.ServiceTypeExternalName || svc.Spec.ClusterIP == "" || svc.Spec.ClusterIP == v1.ClusterIPNone {
		return false
	}
	_, others := svc.Labels["service.kubernetes.io/service-proxy-name"]
	return !others
}

// commonFields returns what all ports of a service have in common.
func commonFields(svc *v1.Service, view View, note faultList) Service {
	s := Service{
		InternalLocal: svc.Spec.InternalTrafficPolicy != nil && *svc.Spec.InternalTrafficPolicy == v1.ServiceInternalTrafficPolicyLocal,
		ExternalLocal: svc.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal,
		own:           view.Own,
	}
	ips := svc.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{svc.Spec.ClusterIP}
	}
	s.ClusterIPs = family(ips, view.V4, note)
	s.ExternalIPs = view.external(externalIPs, svc.Spec.ExternalIPs, note)
	for i := range svc.Status.LoadBalancer.Ingress {
		in := &svc.Status.LoadBalancer.Ingress[i]
		if in.IP != "" && (in.IPMode == nil || *in.IPMode == v1.LoadBalancerIPModeVIP) {
			s.LoadBalancer = append(s.LoadBalancer, view.external(balancersIPs, []string{in.IP}, note)...)
		}
	}
	s.Sources = sources(svc.Spec.LoadBalancerSourceRanges, view.V4, note)
	if svc.Spec.SessionAffinity == v1.ServiceAffinityClientIP {
		seconds := v1.DefaultClientIPServiceAffinitySeconds
		if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			seconds = *c.ClientIP.TimeoutSeconds
		}
		s.Affinity = time.Duration(min(max(seconds, 1), longestAffinity)) * time.Second
	}
	return s
}

// sources parses the networks whose clients may use the load balancer's addresses. If networks are given and none of them
// is a valid network of the family, no client may connect: the result is a network without clients.
func sources(texts []string, v4 bool, note faultList) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		switch {
		case err != nil:
			note.add("load balancer source range %q is no network", text)
		case p.Addr().Unmap().Is4() == v4:
			out = append(out, p.Masked())
		}
	}
	if len(texts) > 0 && len(out) == 0 {
		out = []netip.Prefix{noNetwork(v4)}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

func noNetwork(v4 bool) netip.Prefix {
	if v4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 32)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 128)
}

// family returns the valid addresses of the family; invalid ones are reported as faults.
func family(ips []string, v4 bool, note faultList) []netip.Addr {
	var out []netip.Addr
	for _, ip := range ips {
		a, err := netip.ParseAddr(ip)
		switch a = a.Unmap(); {
		case err != nil || !usable(a):
			note.add("address %q cannot be a service's", ip)
		case a.Is4() == v4 && !slices.Contains(out, a):
			out = append(out, a)
		}
	}
	return out
}

// usable reports whether packets to the address can be rewritten to a backend.
func usable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.IsLinkLocalUnicast() &&
		a != broadcast
}

// longestAffinity is the API's limit of an affinity timeout, in seconds.
const longestAffinity = 86400

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})
