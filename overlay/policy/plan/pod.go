package plan

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodKey names a pod.
type PodKey struct{ Namespace, Name string }

// Pod is the part of a pod that policies need.
type Pod struct {
	PodKey
	UID     types.UID
	Created int64 // seconds since 1970
	Labels  map[string]string
	// Addresses are the pod's addresses on the pod network; empty: not known yet.
	Addresses []netip.Addr
	Ports     []NamedPort
	Local     bool // the pod runs on this node

	attached bool // the addresses come from the agent, which attached the pod
}

// NamedPort is a port of a container with a name.
type NamedPort struct {
	Name     string
	Protocol Protocol
	Number   uint16
}

// PodOf returns the part of a pod that policies need. ok is false for pods to which policies do not apply: those on the network
// of their node, and those that have ended, whose addresses other pods may have by now.
func PodOf(p *v1.Pod, node string) (pod Pod, ok bool) {
	if p.Spec.HostNetwork || p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed {
		return Pod{}, false
	}
	pod = Pod{
		PodKey: PodKey{p.Namespace, p.Name}, UID: p.UID, Created: p.CreationTimestamp.Unix(), Labels: p.Labels,
		Local: p.Spec.NodeName == node,
	}
	for _, ip := range p.Status.PodIPs {
		pod.addAddress(ip.IP)
	}
	if len(p.Status.PodIPs) == 0 && p.Status.PodIP != "" {
		pod.addAddress(p.Status.PodIP)
	}
	for _, list := range [][]v1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			pod.addPorts(list[i].Ports)
		}
	}
	return pod, pod.Local || len(pod.Addresses) > 0
}

func (p *Pod) addAddress(text string) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		p.Addresses = append(p.Addresses, a.Unmap())
	}
}

func (p *Pod) addPorts(list []v1.ContainerPort) {
	for _, c := range list {
		if protocol, ok := protocolOf(c.Protocol); ok && c.Name != "" && c.ContainerPort > 0 && c.ContainerPort <= 65535 {
			p.Ports = append(p.Ports, NamedPort{c.Name, protocol, uint16(c.ContainerPort)})
		}
	}
}

// hasPriorityOver reports whether p, and not other, owns an address that both have: the pod that the agent attached here
// has priority, else the newer pod. A pod that is being replaced may keep its address in the API for a while after another
// pod got it.
func (p *Pod) hasPriorityOver(other *Pod) bool {
	switch {
	case p.attached != other.attached:
		return p.attached
	case p.Created != other.Created:
		return p.Created > other.Created
	case p.Namespace != other.Namespace:
		return p.Namespace > other.Namespace
	}
	return p.Name > other.Name
}
