package endpoints

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"

	"github.com/balsahq/balsa/leader/controllerref"
	"github.com/balsahq/balsa/leader/workqueue"
)

const (
	mirrorManager = "endpointslicemirroring-controller.k8s.io"
	// perSubset bounds the addresses mirrored of one subset.
	perSubset = 1000
	// electionRecord marks Endpoints that were used as a lock, as was once done.
	electionRecord = "control-plane.alpha.kubernetes.io/leader"
)

type mirror struct {
	env       workqueue.Env
	services  corelisters.ServiceLister
	endpoints corelisters.EndpointsLister
	slices    discoverylisters.EndpointSliceLister
	loop      *workqueue.Loop[workqueue.Key]
}

// NewMirror returns the controller that copies Endpoints people wrote for Services without a selector into EndpointSlices.
func NewMirror(env workqueue.Env, workers int) (workqueue.Runner, error) {
	core, inf := env.Informers.Core().V1(), env.Informers.Discovery().V1().EndpointSlices()
	c := &mirror{env: env, services: core.Services().Lister(), endpoints: core.Endpoints().Lister(), slices: inf.Lister()}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		workqueue.Watch(c.loop, core.Services().Informer(), func(old, now *v1.Service) {
			if old == nil || now == nil || served(old) != served(now) {
				c.loop.Add(workqueue.KeyOf(workqueue.Newest(old, now)))
			}
		}),
		workqueue.Watch(c.loop, core.Endpoints().Informer(), func(old, now *v1.Endpoints) {
			if e := workqueue.Newest(old, now); e.Labels[labelManagedBy] != managedBy {
				c.loop.Add(workqueue.KeyOf(e))
			}
		}),
		workqueue.Watch(c.loop, inf.Informer(), func(old, now *discoveryv1.EndpointSlice) {
			for _, s := range workqueue.Either(old, now) {
				if s.Labels[discoveryv1.LabelManagedBy] == mirrorManager {
					c.loop.Add(workqueue.Key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]})
				}
			}
		}),
	)
}

// mirrored reports whether the Endpoints are to be copied for the Service; either may be nil.
func mirrored(s *v1.Service, e *v1.Endpoints) bool {
	if s == nil || e == nil || s.Spec.Selector != nil || e.DeletionTimestamp != nil {
		return false
	}
	_, lock := e.Annotations[electionRecord]
	return !lock && e.Labels[discoveryv1.LabelSkipMirror] != "true"
}

// copies are the EndpointSlices of hand-written Endpoints: one for each subset and address family.
func copies(e *v1.Endpoints) (map[string]*discoveryv1.EndpointSlice, error) {
	out := map[string]*discoveryv1.EndpointSlice{}
	for i := range e.Subsets {
		sub := &e.Subsets[i]
		for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
			s := &discoveryv1.EndpointSlice{AddressType: family, Ports: portsOf(sub.Ports)}
			s.Endpoints = append(s.Endpoints, convert(sub.Addresses, family, true)...)
			s.Endpoints = append(s.Endpoints, convert(sub.NotReadyAddresses, family, false)...)
			if len(s.Endpoints) == 0 {
				continue
			}
			s.Endpoints = s.Endpoints[:min(len(s.Endpoints), perSubset)]
			id, err := json.Marshal([]any{e.UID, family, sub.Ports})
			if err != nil {
				return nil, fmt.Errorf("naming a slice: %w", err)
			}
			h := fnv.New32a()
			h.Write(id)
			s.Namespace, s.Name = e.Namespace, fmt.Sprintf("%s-%08x", e.Name[:min(len(e.Name), 50)], h.Sum32())
			s.Labels = maps.Clone(e.Labels)
			if s.Labels == nil {
				s.Labels = map[string]string{}
			}
			s.Labels[discoveryv1.LabelServiceName], s.Labels[discoveryv1.LabelManagedBy] = e.Name, mirrorManager
			s.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(e, v1.SchemeGroupVersion.WithKind("Endpoints"))}
			out[s.Name] = s
		}
	}
	return out, nil
}

func portsOf(in []v1.EndpointPort) []discoveryv1.EndpointPort {
	out := make([]discoveryv1.EndpointPort, 0, len(in))
	for _, p := range in {
		out = append(out, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: p.AppProtocol})
	}
	return out
}

func convert(in []v1.EndpointAddress, family discoveryv1.AddressType, ready bool) []discoveryv1.Endpoint {
	var out []discoveryv1.Endpoint
	for _, a := range in {
		ip, err := netip.ParseAddr(a.IP)
		if err != nil || ip.Is6() != (family == discoveryv1.AddressTypeIPv6) {
			continue
		}
		e := discoveryv1.Endpoint{Addresses: []string{a.IP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, TargetRef: a.TargetRef, NodeName: a.NodeName}
		if a.Hostname != "" {
			e.Hostname = &a.Hostname
		}
		out = append(out, e)
	}
	return out
}

func (c *mirror) reconcile(ctx context.Context, key workqueue.Key) error {
	s, err := c.services.Services(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	e, missing := c.endpoints.Endpoints(key.Namespace).Get(key.Name)
	if missing != nil && !apierrors.IsNotFound(missing) {
		return missing
	}
	want := map[string]*discoveryv1.EndpointSlice{}
	if err == nil && missing == nil && mirrored(s, e) {
		if want, err = copies(e); err != nil {
			return err
		}
	}
	have, err := c.slices.EndpointSlices(key.Namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: key.Name, discoveryv1.LabelManagedBy: mirrorManager,
	}))
	if err != nil {
		return err
	}
	return c.write(ctx, key.Namespace, have, want)
}

func (c *mirror) write(ctx context.Context, namespace string, have []*discoveryv1.EndpointSlice, want map[string]*discoveryv1.EndpointSlice) error {
	client := c.env.Client.DiscoveryV1().EndpointSlices(namespace)
	var errs []error
	for _, old := range have {
		now := want[old.Name]
		delete(want, old.Name)
		switch {
		case now == nil || now.AddressType != old.AddressType:
			if err := client.Delete(ctx, old.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, err)
			}
		case !equality.Semantic.DeepEqual(old.Endpoints, now.Endpoints) || !equality.Semantic.DeepEqual(old.Ports, now.Ports) || !equality.Semantic.DeepEqual(old.Labels, now.Labels):
			now.ResourceVersion = old.ResourceVersion
			if _, err := client.Update(ctx, now, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, err)
			}
		}
	}
	for _, now := range want {
		_, err := client.Create(ctx, now, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) && !controllerref.NamespaceEnding(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
