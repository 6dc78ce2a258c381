package control

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/balsahq/balsa/control/auth/authz"
)

// The kubernetes Service: how pods reach the API.
const (
	apiService = "kubernetes"
	apiPort    = 443
)

func (s *Server) serviceCIDR() *networkingv1.ServiceCIDR {
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: apiService}}
	for _, p := range s.cfg.serviceCIDRs() {
		cidr.Spec.CIDRs = append(cidr.Spec.CIDRs, p.String())
	}
	return cidr
}

func (s *Server) service() *corev1.Service {
	single := corev1.IPFamilyPolicySingleStack
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: apiService, Namespace: metav1.NamespaceDefault,
			Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: s.cfg.serviceIP().String(), IPFamilyPolicy: &single,
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{
				Name: "https", Protocol: corev1.ProtocolTCP, Port: apiPort, TargetPort: intstr.FromInt32(int32(s.cfg.AdvertisePort)),
			}},
		},
	}
}

// dnsService has no selector: the nodes answer at its address themselves.
func (s *Server) dnsService() *corev1.Service {
	single := corev1.IPFamilyPolicySingleStack
	port := func(name string, protocol corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: protocol, Port: 53, TargetPort: intstr.FromInt32(53)}
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: "kube-dns", Namespace: metav1.NamespaceSystem,
			Labels: map[string]string{"k8s-app": "kube-dns", "kubernetes.io/name": "Balsa"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: s.cfg.ClusterDNS.String(), IPFamilyPolicy: &single,
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports:           []corev1.ServicePort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)},
		},
	}
}

// ingressClass returns the IngressClass of the nodes. It is only created; an administrator's changes stay.
func (s *Server) ingressClass() *networkingv1.IngressClass {
	return &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.cfg.IngressClass, Annotations: map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"},
		},
		Spec: networkingv1.IngressClassSpec{Controller: authz.IngressController},
	}
}

// endpoints is the Endpoints object, which older clients read.
//
//nolint:staticcheck // superseded by slices, and still there in every cluster
func (s *Server) endpoints() *corev1.Endpoints {
	return &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{
			Name: apiService, Namespace: metav1.NamespaceDefault, Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"},
		},
		Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: s.cfg.AdvertiseAddress.String()}},
			Ports:     []corev1.EndpointPort{{Name: "https", Port: int32(s.cfg.AdvertisePort), Protocol: corev1.ProtocolTCP}},
		}},
	}
}

func (s *Server) slice() *discoveryv1.EndpointSlice {
	name, port, protocol, ready := "https", int32(s.cfg.AdvertisePort), corev1.ProtocolTCP, true
	family := discoveryv1.AddressTypeIPv4
	if s.cfg.AdvertiseAddress.Unmap().Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: apiService, Namespace: metav1.NamespaceDefault, Labels: map[string]string{discoveryv1.LabelServiceName: apiService},
		},
		AddressType: family,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{s.cfg.AdvertiseAddress.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		}},
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
}
