package services

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// HostPort maps a port of the node to a pod.
type HostPort struct {
	Pod      string     // "namespace/name", for messages
	Address  netip.Addr // invalid: every address of the node
	Port     uint16
	Protocol Protocol
	Backend  netip.AddrPort
}

// HostPorts returns the host ports of these pods, which run on this node. Pods in the host's network need none.
func HostPorts(pods []*v1.Pod, v4 bool) []HostPort {
	var out []HostPort
	for _, pod := range pods {
		if pod.Spec.HostNetwork || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
			continue
		}
		ip, ok := podIP(pod, v4)
		if !ok {
			continue
		}
		for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				out = appendHostPorts(out, pod, &list[i], ip)
			}
		}
	}
	slices.SortFunc(out, func(a, b HostPort) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), a.Address.Compare(b.Address), cmp.Compare(a.Pod, b.Pod))
	})
	return out
}

func appendHostPorts(out []HostPort, pod *v1.Pod, c *v1.Container, ip netip.Addr) []HostPort {
	for _, p := range c.Ports {
		if p.HostPort < 1 || p.HostPort > 65535 || p.ContainerPort < 1 || p.ContainerPort > 65535 {
			continue
		}
		h := HostPort{
			Pod: pod.Namespace + "/" + pod.Name, Port: uint16(p.HostPort), Protocol: ParseProtocol(p.Protocol),
			Backend: netip.AddrPortFrom(ip, uint16(p.ContainerPort)),
		}
		if p.HostIP != "" {
			a, err := netip.ParseAddr(p.HostIP)
			if err != nil || a.Unmap().Is4() != ip.Is4() {
				continue
			}
			if a = a.Unmap(); !a.IsUnspecified() {
				h.Address = a
			}
		}
		out = append(out, h)
	}
	return out
}

func podIP(pod *v1.Pod, v4 bool) (netip.Addr, bool) {
	ips := []string{pod.Status.PodIP}
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	all := family(ips, v4, faultList{new([]string)})
	if len(all) == 0 {
		return netip.Addr{}, false
	}
	return all[0], true
}
