package endpoints

import (
	"maps"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/endpointslice"
	sliceutil "k8s.io/endpointslice/util"
	"k8s.io/kubernetes/pkg/api/v1/endpoints"

	"github.com/balsahq/balsa/leader/pods"
)

const (
	// labelManagedBy tells this controller's Endpoints from those people wrote.
	labelManagedBy = "endpoints.kubernetes.io/managed-by"
	managedBy      = "endpoint-controller"
	// capacity bounds the addresses of one Endpoints object (KEP-752).
	capacity = 1000
)

// subsets computes the addresses of a Service. Pods that are not ready are listed apart, unless the Service publishes
// them anyway; pods without an address of the Service's family are left out.
func subsets(s *v1.Service, candidates []*v1.Pod) []v1.EndpointSubset {
	var out []v1.EndpointSubset
	for _, p := range candidates {
		if !sliceutil.ShouldPodBeInEndpoints(p, s.Spec.PublishNotReadyAddresses) {
			continue
		}
		ip := address(s, p)
		if ip == "" {
			continue
		}
		a := v1.EndpointAddress{IP: ip, NodeName: &p.Spec.NodeName, TargetRef: &v1.ObjectReference{
			Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID,
		}}
		if sliceutil.ShouldSetHostname(p, s) {
			a.Hostname = p.Spec.Hostname
		}
		ready := s.Spec.PublishNotReadyAddresses || pods.Ready(p)
		if len(s.Spec.Ports) == 0 && s.Spec.ClusterIP == v1.ClusterIPNone {
			out = append(out, subset(a, ready, nil))
		}
		for i := range s.Spec.Ports {
			port := &s.Spec.Ports[i]
			number, err := endpointslice.FindPort(p, port)
			if err != nil {
				continue // the pod does not name that port
			}
			out = append(out, subset(a, ready, []v1.EndpointPort{{
				Name: port.Name, Port: int32(number), Protocol: port.Protocol, AppProtocol: port.AppProtocol,
			}}))
		}
	}
	return endpoints.RepackSubsets(out)
}

func subset(a v1.EndpointAddress, ready bool, ports []v1.EndpointPort) v1.EndpointSubset {
	if ready {
		return v1.EndpointSubset{Addresses: []v1.EndpointAddress{a}, Ports: ports}
	}
	return v1.EndpointSubset{NotReadyAddresses: []v1.EndpointAddress{a}, Ports: ports}
}

// address is the pod's IP of the Service's first family; empty when it has none.
func address(s *v1.Service, p *v1.Pod) string {
	family := v1.IPv4Protocol
	clusterIP, err := netip.ParseAddr(s.Spec.ClusterIP)
	switch {
	case len(s.Spec.IPFamilies) > 0:
		family = s.Spec.IPFamilies[0]
	case err == nil && clusterIP.Is6():
		family = v1.IPv6Protocol
	}
	for _, ip := range p.Status.PodIPs {
		a, err := netip.ParseAddr(ip.IP)
		if err == nil && a.Is6() == (family == v1.IPv6Protocol) {
			return a.String()
		}
	}
	return ""
}

// truncate keeps capacity addresses, ready ones first, and reports whether it dropped any.
func truncate(in []v1.EndpointSubset) bool {
	ready, notReady := 0, 0
	for i := range in {
		ready += len(in[i].Addresses)
		notReady += len(in[i].NotReadyAddresses)
	}
	if ready+notReady <= capacity {
		return false
	}
	left := capacity
	for i := range in {
		n := min(left, len(in[i].Addresses))
		in[i].Addresses = in[i].Addresses[:n]
		left -= n
	}
	for i := range in {
		n := min(left, len(in[i].NotReadyAddresses))
		in[i].NotReadyAddresses = in[i].NotReadyAddresses[:n]
		left -= n
	}
	return true
}

// desired returns the Endpoints that a Service should have, made from the present ones (nil when there are none). It returns nil
// when nothing has to be written.
func desired(s *v1.Service, candidates []*v1.Pod, have *v1.Endpoints) *v1.Endpoints {
	want := &v1.Endpoints{}
	if have != nil {
		want = have.DeepCopy()
	}
	want.Name, want.Namespace = s.Name, s.Namespace
	want.Subsets = subsets(s, candidates)
	want.Labels = maps.Clone(s.Labels)
	if want.Labels == nil {
		want.Labels = map[string]string{}
	}
	want.Labels[labelManagedBy] = managedBy
	delete(want.Labels, v1.IsHeadlessService)
	if s.Spec.ClusterIP == v1.ClusterIPNone || s.Spec.ClusterIP == "" {
		want.Labels[v1.IsHeadlessService] = ""
	}
	if truncate(want.Subsets) {
		if want.Annotations == nil {
			want.Annotations = map[string]string{}
		}
		want.Annotations[v1.EndpointsOverCapacity] = "truncated"
	} else {
		delete(want.Annotations, v1.EndpointsOverCapacity)
	}
	if have != nil && equality.Semantic.DeepEqual(have, want) {
		return nil
	}
	return want
}
