package control

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/balsahq/balsa/control/auth/bootstrap"
)

// The kubernetes Service: how pods reach the API.
const (
	apiService = "kubernetes"
	apiPort    = 443
)

// ensureDefaults makes the objects every cluster has, and repairs those that tell where this server is. It may be
// run again at any time.
func (s *Server) ensureDefaults(ctx context.Context) error {
	if err := bootstrap.Ensure(ctx, s.client); err != nil {
		return err
	}
	var g errgroup.Group
	g.Go(func() error { return s.ensureServiceCIDR(ctx) })
	g.Go(func() error { return s.ensureService(ctx) })
	g.Go(func() error { return s.ensureEndpoints(ctx) })
	g.Go(func() error { return s.ensureSlice(ctx) })
	return g.Wait()
}

func (s *Server) ensureServiceCIDR(ctx context.Context) error {
	_, err := s.client.NetworkingV1().ServiceCIDRs().Create(ctx, &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: apiService},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{s.cfg.ServiceCIDR.String()}},
	}, metav1.CreateOptions{})
	return made("service CIDR", err)
}

func (s *Server) ensureService(ctx context.Context) error {
	single := corev1.IPFamilyPolicySingleStack
	_, err := s.client.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: apiService, Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: s.cfg.serviceIP().String(), IPFamilyPolicy: &single,
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports:           []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: apiPort, TargetPort: intstr.FromInt(s.cfg.AdvertisePort)}},
		},
	}, metav1.CreateOptions{})
	return made("service kubernetes", err)
}

// made takes an object that was there already as made.
func made(what string, err error) error {
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// ensureEndpoints keeps the Endpoints object, which older clients read.
func (s *Server) ensureEndpoints(ctx context.Context) error {
	//nolint:staticcheck // superseded by slices, and still there in every cluster
	want := []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: s.cfg.AdvertiseAddress.String()}},
		Ports:     []corev1.EndpointPort{{Name: "https", Port: int32(s.cfg.AdvertisePort), Protocol: corev1.ProtocolTCP}},
	}}
	client := s.client.CoreV1().Endpoints(metav1.NamespaceDefault)
	have, err := client.Get(ctx, apiService, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		//nolint:staticcheck // as above
		_, err = client.Create(ctx, &corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Name: apiService, Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"}},
			Subsets:    want,
		}, metav1.CreateOptions{})
	case err == nil && !apiequality.Semantic.DeepEqual(have.Subsets, want):
		have.Subsets = want
		_, err = client.Update(ctx, have, metav1.UpdateOptions{})
	}
	return made("endpoints kubernetes", err)
}

func (s *Server) ensureSlice(ctx context.Context) error {
	want := s.slice()
	client := s.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	have, err := client.Get(ctx, apiService, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && !sameSlice(have, want):
		have.Endpoints, have.Ports = want.Endpoints, want.Ports
		_, err = client.Update(ctx, have, metav1.UpdateOptions{})
	}
	return made("endpoint slice kubernetes", err)
}

func (s *Server) slice() *discoveryv1.EndpointSlice {
	name, port, protocol, ready := "https", int32(s.cfg.AdvertisePort), corev1.ProtocolTCP, true
	family := discoveryv1.AddressTypeIPv4
	if s.cfg.AdvertiseAddress.Unmap().Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: apiService, Labels: map[string]string{discoveryv1.LabelServiceName: apiService}},
		AddressType: family,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{s.cfg.AdvertiseAddress.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		}},
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
}

func sameSlice(a, b *discoveryv1.EndpointSlice) bool {
	return slices.EqualFunc(a.Endpoints, b.Endpoints, func(x, y discoveryv1.Endpoint) bool { return apiequality.Semantic.DeepEqual(x, y) }) &&
		apiequality.Semantic.DeepEqual(a.Ports, b.Ports)
}
