package policytest

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Flow is a connection from one address to a port of another.
type Flow struct {
	From, To netip.Addr
	Protocol v1.Protocol
	Port     int32
}

// Allows reports whether the policies that Node enforces allow a flow. Node enforces policies for its own pods, as source
// and as destination. Flows from or to Node itself must not be asked.
func (w *World) Allows(f Flow) bool {
	from, to := w.podAt(f.From), w.podAt(f.To)
	if f.From == f.To {
		return true
	}
	if from != nil && from.Spec.NodeName == Node && !w.egressAllows(from, to, f) {
		return false
	}
	return to == nil || to.Spec.NodeName != Node || w.ingressAllows(to, from, f)
}

func (w *World) podAt(a netip.Addr) *v1.Pod {
	for _, p := range w.Pods {
		for _, ip := range p.Status.PodIPs {
			if have, err := netip.ParseAddr(ip.IP); err == nil && have == a {
				return p
			}
		}
	}
	return nil
}

func (w *World) ingressAllows(pod, from *v1.Pod, f Flow) bool {
	isolated := false
	for _, np := range w.Policies {
		isIngress := len(np.Spec.PolicyTypes) == 0 || slices.Contains(np.Spec.PolicyTypes, networking.PolicyTypeIngress)
		if np.Namespace != pod.Namespace || !isIngress || !selects(&np.Spec.PodSelector, pod.Labels) {
			continue
		}
		isolated = true
		for _, r := range np.Spec.Ingress {
			if w.peersMatch(np, r.From, from, f.From) && portsMatch(r.Ports, pod, f) {
				return true
			}
		}
	}
	return !isolated
}

func (w *World) egressAllows(pod, to *v1.Pod, f Flow) bool {
	isolated := false
	for _, np := range w.Policies {
		isEgress := len(np.Spec.PolicyTypes) == 0 && len(np.Spec.Egress) > 0 ||
			slices.Contains(np.Spec.PolicyTypes, networking.PolicyTypeEgress)
		if np.Namespace != pod.Namespace || !isEgress || !selects(&np.Spec.PodSelector, pod.Labels) {
			continue
		}
		isolated = true
		for _, r := range np.Spec.Egress {
			if w.peersMatch(np, r.To, to, f.To) && portsMatch(r.Ports, to, f) {
				return true
			}
		}
	}
	return !isolated
}

// peersMatch reports whether a peer matches; an empty list matches everything; pod may be nil.
func (w *World) peersMatch(np *networking.NetworkPolicy, peers []networking.NetworkPolicyPeer, pod *v1.Pod, a netip.Addr) bool {
	if len(peers) == 0 {
		return true
	}
	for _, peer := range peers {
		if w.peerMatches(np, peer, pod, a) {
			return true
		}
	}
	return false
}

func (w *World) peerMatches(np *networking.NetworkPolicy, peer networking.NetworkPolicyPeer, pod *v1.Pod, a netip.Addr) bool {
	if peer.IPBlock != nil {
		return peer.PodSelector == nil && peer.NamespaceSelector == nil && blockContains(peer.IPBlock, a)
	}
	if pod == nil || peer.PodSelector == nil && peer.NamespaceSelector == nil {
		return false
	}
	if peer.PodSelector != nil && !selects(peer.PodSelector, pod.Labels) {
		return false
	}
	if peer.NamespaceSelector == nil {
		return pod.Namespace == np.Namespace
	}
	for _, n := range w.Namespaces {
		if n.Name == pod.Namespace {
			return selects(peer.NamespaceSelector, n.Labels)
		}
	}
	return false
}

func blockContains(b *networking.IPBlock, a netip.Addr) bool {
	cidr, err := netip.ParsePrefix(b.CIDR)
	if err != nil || !cidr.Contains(a) {
		return false
	}
	for _, text := range b.Except {
		except, err := netip.ParsePrefix(text)
		if err != nil {
			return false
		}
		if except.Contains(a) {
			return false
		}
	}
	return true
}

// portsMatch reports whether a port matches; an empty list matches all ports. target is the pod whose named ports apply; it
// may be nil.
func portsMatch(ports []networking.NetworkPolicyPort, target *v1.Pod, f Flow) bool {
	if len(ports) == 0 {
		return true
	}
	for _, p := range ports {
		protocol := v1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		if protocol == f.Protocol && portMatches(p, protocol, target, f.Port) {
			return true
		}
	}
	return false
}

func portMatches(p networking.NetworkPolicyPort, protocol v1.Protocol, target *v1.Pod, port int32) bool {
	switch {
	case p.Port == nil:
		return p.EndPort == nil
	case p.Port.Type == intstr.Int && p.EndPort != nil:
		return p.Port.IntVal <= port && port <= *p.EndPort
	case p.Port.Type == intstr.Int:
		return p.Port.IntVal == port
	case p.EndPort != nil || target == nil:
		return false
	}
	for _, c := range target.Spec.Containers {
		for _, cp := range c.Ports {
			if cp.Name == p.Port.StrVal && cp.ContainerPort == port && cp.Protocol == protocol {
				return true
			}
		}
	}
	return false
}

func selects(s *metav1.LabelSelector, labels map[string]string) bool {
	for k, v := range s.MatchLabels {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	for _, r := range s.MatchExpressions {
		value, has := labels[r.Key]
		switch r.Operator {
		case metav1.LabelSelectorOpIn:
			if !has || !slices.Contains(r.Values, value) {
				return false
			}
		case metav1.LabelSelectorOpNotIn:
			if has && slices.Contains(r.Values, value) {
				return false
			}
		case metav1.LabelSelectorOpExists:
			if !has {
				return false
			}
		case metav1.LabelSelectorOpDoesNotExist:
			if has {
				return false
			}
		default:
			return false // an unknown operator matches no pod
		}
	}
	return true
}
