package kinds

import (
	"k8s.io/kubernetes/pkg/apis/discovery"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/registry/discovery/endpointslice"
	"k8s.io/kubernetes/pkg/registry/networking/ingress"
	"k8s.io/kubernetes/pkg/registry/networking/ingressclass"
	"k8s.io/kubernetes/pkg/registry/networking/ipaddress"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"
)

func networkRows() []Row {
	return []Row{{
		Group: networking.GroupName, Resource: "ingresses", Singular: "ingress", Short: []string{"ing"},
		Types: typesOf[networking.Ingress, networking.IngressList](), Strategy: ingress.Strategy, Views: status(ingress.StatusStrategy),
	}, {
		Group: networking.GroupName, Resource: "ingressclasses", Singular: "ingressclass",
		Types: typesOf[networking.IngressClass, networking.IngressClassList](), Strategy: ingressclass.Strategy,
	}, {
		Group: networking.GroupName, Resource: "networkpolicies", Singular: "networkpolicy", Short: []string{"netpol"},
		Types: typesOf[networking.NetworkPolicy, networking.NetworkPolicyList](), Strategy: networkpolicy.Strategy,
	}, {
		Group: networking.GroupName, Resource: "ipaddresses", Singular: "ipaddress", Short: []string{"ip"},
		Types: typesOf[networking.IPAddress, networking.IPAddressList](), Strategy: ipaddress.Strategy,
	}, {
		Group: networking.GroupName, Resource: "servicecidrs", Singular: "servicecidr",
		Types: typesOf[networking.ServiceCIDR, networking.ServiceCIDRList](), Strategy: servicecidr.Strategy,
		Views: status(servicecidr.StatusStrategy),
	}, {
		Group: discovery.GroupName, Resource: "endpointslices", Singular: "endpointslice",
		Types: typesOf[discovery.EndpointSlice, discovery.EndpointSliceList](), Strategy: endpointslice.Strategy,
	}}
}
