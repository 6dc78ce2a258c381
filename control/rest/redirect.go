package rest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"

	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// redirector finds a ready pod of a Service, for services/proxy.
type redirector struct {
	services, endpoints, pods *genericregistry.Store
	reach                     *nodeTransports
}

var _ rest.Redirector = (*redirector)(nil)

// ResourceLocation parses "name", "name:port" and "scheme:name:port"; port is a port's name or number.
func (r *redirector) ResourceLocation(ctx context.Context, id string) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", id))
	}
	if number, err := strconv.Atoi(port); err == nil {
		svc, err := read[*api.Service](ctx, r.services, name)
		if err != nil {
			return nil, nil, err
		}
		if port, err = portName(svc, number); err != nil {
			return nil, nil, err
		}
	}
	if r.endpoints == nil || r.pods == nil {
		return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
	}
	eps, err := read[*api.Endpoints](ctx, r.endpoints, name)
	if err != nil {
		return nil, nil, err
	}
	if host, node := r.pick(ctx, eps, port); host != "" {
		return &url.URL{Scheme: scheme, Host: host}, r.reach.forNode(node).plain, nil
	}
	return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", id))
}

func portName(svc *api.Service, number int) (string, error) {
	for i := range svc.Spec.Ports {
		if int(svc.Spec.Ports[i].Port) == number {
			return svc.Spec.Ports[i].Name, nil
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, svc.Name))
}

// pick tries subsets and addresses from a random position on. It returns the first address that belongs to a pod, and
// that pod's node. Users write Endpoints too, and these must not open a way to any address that the API server can
// reach.
func (r *redirector) pick(ctx context.Context, eps *api.Endpoints, port string) (host, node string) {
	for i := range rotated(len(eps.Subsets)) {
		s := &eps.Subsets[i]
		for _, p := range s.Ports {
			if p.Name != port {
				continue
			}
			for j := range rotated(len(s.Addresses)) {
				a := &s.Addresses[j]
				if node, ok := r.podAt(ctx, a); ok {
					return net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))), node
				}
			}
		}
	}
	return "", ""
}

func rotated(n int) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		if n == 0 {
			return
		}
		start := rand.IntN(n)
		for i := range n {
			if !yield((start + i) % n) {
				return
			}
		}
	}
}

// podAt returns the node of the pod with this address; ok is false if the address belongs to no pod.
func (r *redirector) podAt(ctx context.Context, a *api.EndpointAddress) (node string, ok bool) {
	if a.TargetRef == nil || a.TargetRef.Namespace != request.NamespaceValue(ctx) {
		return "", false
	}
	obj, err := r.pods.Get(ctx, a.TargetRef.Name, &metav1.GetOptions{})
	if err != nil {
		return "", false
	}
	pod, ok := obj.(*api.Pod)
	if !ok {
		return "", false
	}
	for _, ip := range pod.Status.PodIPs {
		if ip.IP == a.IP {
			return pod.Spec.NodeName, true
		}
	}
	return "", false
}
