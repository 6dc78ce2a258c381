package apiservers

import (
	"fmt"
	"net/netip"
	stdslices "slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	service  = "kubernetes"
	portName = "https"
)

// group is the servers that one slice, or one subset, can hold: those of one family and one port.
type group struct {
	family discoveryv1.AddressType
	port   uint16
	ips    []string
}

// groups sorts the servers, so that the same ones always give the same objects.
func groups(servers []netip.AddrPort) []group {
	sorted := make([]netip.AddrPort, 0, len(servers))
	for _, s := range servers {
		if s.IsValid() {
			sorted = append(sorted, netip.AddrPortFrom(s.Addr().Unmap(), s.Port()))
		}
	}
	stdslices.SortFunc(sorted, netip.AddrPort.Compare)
	var out []group
	for _, s := range stdslices.Compact(sorted) {
		family := discoveryv1.AddressTypeIPv4
		if s.Addr().Is6() {
			family = discoveryv1.AddressTypeIPv6
		}
		i := stdslices.IndexFunc(out, func(g group) bool { return g.family == family && g.port == s.Port() })
		if i < 0 {
			i = len(out)
			out = append(out, group{family: family, port: s.Port()})
		}
		out[i].ips = append(out[i].ips, s.Addr().String())
	}
	return out
}

// endpointsOf is the Endpoints object; nil for no servers.
//
//nolint:staticcheck // superseded by slices, and still there in every cluster
func endpointsOf(servers []netip.AddrPort) *v1.Endpoints {
	out := &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Name: service, Namespace: metav1.NamespaceDefault, Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"},
	}}
	for _, g := range groups(servers) {
		subset := v1.EndpointSubset{Ports: []v1.EndpointPort{{Name: portName, Port: int32(g.port), Protocol: v1.ProtocolTCP}}}
		for _, ip := range g.ips {
			subset.Addresses = append(subset.Addresses, v1.EndpointAddress{IP: ip})
		}
		out.Subsets = append(out.Subsets, subset)
	}
	if out.Subsets == nil {
		return nil
	}
	return out
}

// slicesOf are the EndpointSlices by name: one has the Service's own name, as upstream's; others are needed only while
// servers differ in port or family.
func slicesOf(servers []netip.AddrPort) map[string]*discoveryv1.EndpointSlice {
	out := map[string]*discoveryv1.EndpointSlice{}
	for i, g := range groups(servers) {
		name := service
		if i > 0 {
			name = fmt.Sprintf("%s-%d", service, i)
		}
		portName, port, protocol, ready := portName, int32(g.port), v1.ProtocolTCP, true
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: metav1.NamespaceDefault, Labels: map[string]string{discoveryv1.LabelServiceName: service},
			},
			AddressType: g.family,
			Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}},
		}
		for _, ip := range g.ips {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			})
		}
		out[name] = slice
	}
	return out
}
