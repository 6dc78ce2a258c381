package plan

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Direction is the direction of a connection, as seen from the pod to which the policy applies.
type Direction uint8

// Directions.
const (
	Ingress Direction = iota
	Egress
	directions
)

func (d Direction) String() string { return [...]string{"in", "out"}[d] }

// Policy is a compiled NetworkPolicy.
type Policy struct {
	Namespace, Name string
	// Faults are the parts that could not be understood; they allow nothing.
	Faults []string

	selects labels.Selector
	applies [directions]bool
	rules   [directions][]rule
}

// rule allows connections with any of its peers at any of its ports.
type rule struct {
	anyPeer bool
	groups  []group
	ranges  []Range
	anyPort bool
	ports   []port
}

// port is a range of ports of a protocol, or a name of a port.
type port struct {
	protocol Protocol
	from, to uint16 // all ports: 0 and 65535
	name     string
}

// Compile compiles a policy. It returns no error: invalid parts are in Faults.
func Compile(np *networking.NetworkPolicy) *Policy {
	p := &Policy{Namespace: np.Namespace, Name: np.Name}
	p.selects = p.selector(&np.Spec.PodSelector, "spec.podSelector")
	p.applies = directionsOf(&np.Spec)
	for i := range np.Spec.Ingress {
		r := &np.Spec.Ingress[i]
		p.rules[Ingress] = append(p.rules[Ingress], p.rule(r.From, r.Ports, fmt.Sprintf("spec.ingress[%d]", i)))
	}
	for i := range np.Spec.Egress {
		r := &np.Spec.Egress[i]
		p.rules[Egress] = append(p.rules[Egress], p.rule(r.To, r.Ports, fmt.Sprintf("spec.egress[%d]", i)))
	}
	return p
}

// directionsOf returns the directions in which a policy isolates. Without policyTypes they follow from the rules, as the API's
// documentation says.
func directionsOf(spec *networking.NetworkPolicySpec) (d [directions]bool) {
	if len(spec.PolicyTypes) == 0 {
		d[Ingress], d[Egress] = true, len(spec.Egress) > 0
	}
	for _, t := range spec.PolicyTypes {
		switch t {
		case networking.PolicyTypeIngress:
			d[Ingress] = true
		case networking.PolicyTypeEgress:
			d[Egress] = true
		}
	}
	return d
}

func (p *Policy) fault(format string, args ...any) {
	p.Faults = append(p.Faults, fmt.Sprintf(format, args...))
}

func (p *Policy) selector(s *metav1.LabelSelector, where string) labels.Selector {
	compiled, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		p.fault("%s: %v", where, err)
		return labels.Nothing()
	}
	return compiled
}

func (p *Policy) rule(peers []networking.NetworkPolicyPeer, ports []networking.NetworkPolicyPort, where string) rule {
	r := rule{anyPeer: len(peers) == 0, anyPort: len(ports) == 0}
	for i := range peers {
		p.addPeer(&r, &peers[i], fmt.Sprintf("%s.peers[%d]", where, i))
	}
	r.ranges = merge(r.ranges)
	for i := range ports {
		if parsed, err := parsePort(&ports[i]); err != nil {
			p.fault("%s.ports[%d]: %v", where, i, err)
		} else {
			r.ports = append(r.ports, parsed)
		}
	}
	return r
}

func (p *Policy) addPeer(r *rule, peer *networking.NetworkPolicyPeer, where string) {
	switch selects := peer.PodSelector != nil || peer.NamespaceSelector != nil; {
	case peer.IPBlock != nil && selects:
		p.fault("%s: ipBlock beside a selector", where)
	case peer.IPBlock != nil:
		ranges, err := rangesOf(peer.IPBlock)
		if err != nil {
			p.fault("%s.ipBlock: %v", where, err)
		}
		r.ranges = append(r.ranges, ranges...)
	case selects:
		g := group{namespace: p.Namespace, pods: labels.Everything()}
		if peer.PodSelector != nil {
			g.pods = p.selector(peer.PodSelector, where+".podSelector")
		}
		if peer.NamespaceSelector != nil {
			g.namespace, g.namespaces = "", p.selector(peer.NamespaceSelector, where+".namespaceSelector")
		}
		r.groups = append(r.groups, g)
	default:
		p.fault("%s: neither selector nor ipBlock", where)
	}
}

func parsePort(in *networking.NetworkPolicyPort) (port, error) {
	name := v1.ProtocolTCP
	if in.Protocol != nil {
		name = *in.Protocol
	}
	protocol, ok := protocolOf(name)
	switch {
	case !ok:
		return port{}, fmt.Errorf("protocol %q is not known", name)
	case in.Port == nil && in.EndPort != nil:
		return port{}, fmt.Errorf("endPort without port")
	case in.Port == nil:
		return port{protocol: protocol, to: 65535}, nil
	case in.Port.Type == intstr.String && in.EndPort != nil:
		return port{}, fmt.Errorf("endPort beside port %q, which is a name", in.Port.StrVal)
	case in.Port.Type == intstr.String && in.Port.StrVal == "":
		return port{}, fmt.Errorf("port has an empty name")
	case in.Port.Type == intstr.String:
		return port{protocol: protocol, name: in.Port.StrVal}, nil
	}
	from, to := in.Port.IntVal, in.Port.IntVal
	if in.EndPort != nil {
		to = *in.EndPort
	}
	if from < 1 || to > 65535 || to < from {
		return port{}, fmt.Errorf("ports %d to %d: not within 1 to 65535, or in the wrong order", from, to)
	}
	return port{protocol: protocol, from: uint16(from), to: uint16(to)}, nil
}

// Protocol is an IP protocol number.
type Protocol uint8

// Protocols that policies know.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

func protocolOf(name v1.Protocol) (Protocol, bool) {
	switch name {
	case v1.ProtocolTCP, "":
		return TCP, true
	case v1.ProtocolUDP:
		return UDP, true
	case v1.ProtocolSCTP:
		return SCTP, true
	}
	return 0, false
}
