package ingress

import (
	"context"
	"crypto/tls"
	"log/slog"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	netlisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault/eventhandler"
	"github.com/balsahq/balsa/overlay/ingress/plan"
)

// sourceConfig configures a source. The caller starts the factories.
type sourceConfig struct {
	networking informers.SharedInformerFactory // of Ingresses and IngressClasses
	services   informers.SharedInformerFactory
	secrets    kubernetes.Interface // reads Secrets by name
	rest       *rest.Config         // reads definitions and the Gateway API's kinds
	log        *slog.Logger
	changed    func() // called from any goroutine when the plan may have changed; must not block
}

// source holds all objects that plans are made from.
type source struct {
	cfg       sourceConfig
	ingresses netlisters.IngressLister
	classes   netlisters.IngressClassLister
	services  corelisters.ServiceLister
	secrets   *secrets
	kinds     *kinds
	synced    []cache.InformerSynced
	named     atomic.Pointer[map[types.NamespacedName]bool] // the Services of the last plan
}

func newSource(cfg sourceConfig) (*source, error) {
	net := cfg.networking.Networking().V1()
	s := &source{
		cfg: cfg, ingresses: net.Ingresses().Lister(), classes: net.IngressClasses().Lister(),
		services: cfg.services.Core().V1().Services().Lister(), secrets: newSecrets(cfg.secrets, cfg.changed),
	}
	var err error
	if s.kinds, err = newKinds(cfg.rest, cfg.log, cfg.changed); err != nil {
		return nil, err
	}
	for _, i := range []cache.SharedIndexInformer{net.Ingresses().Informer(), net.IngressClasses().Informer()} {
		if _, err := i.AddEventHandler(eventhandler.Contain("ingress/events", onAnyChange(cfg.changed))); err != nil {
			return nil, err
		}
		s.synced = append(s.synced, i.HasSynced)
	}
	s.synced = append(s.synced, cfg.services.Core().V1().Services().Informer().HasSynced)
	return s, nil
}

// onAnyChange returns a handler that calls fn for every change of an object, except updates without a change.
func onAnyChange(fn func()) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { fn() }, DeleteFunc: func(any) { fn() },
		UpdateFunc: func(before, after any) {
			if !sameSpec(before, after) {
				fn()
			}
		},
	}
}

// setNamed sets the Services that the last plan named. It wakes the engine for those that changed while the plan was made.
func (s *source) setNamed(services map[types.NamespacedName]bool) {
	before := s.named.Swap(&services)
	for key := range services {
		if before == nil || !(*before)[key] {
			s.cfg.changed()
			return
		}
	}
}

// onService returns the handler for changes of the Services that the last plan named.
func (s *source) onService() cache.ResourceEventHandler {
	tell := func(o any) {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		svc, ok := o.(*v1.Service)
		if named := s.named.Load(); ok && named != nil && (*named)[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] {
			s.cfg.changed()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: tell, DeleteFunc: tell, UpdateFunc: func(before, after any) {
			if !sameSpec(before, after) {
				tell(after)
			}
		},
	}
}

// run keeps the source current until ctx ends, and joins what it started.
func (s *source) run(ctx context.Context) {
	defer s.secrets.close()
	s.kinds.run(ctx)
}

// ready reports whether the first lists of all watched kinds are complete.
func (s *source) ready() bool {
	for _, is := range s.synced {
		if !is() {
			return false
		}
	}
	return s.kinds.ready()
}

// objects returns the current objects. Secrets come from their watches.
func (s *source) objects() (*plan.Objects, error) {
	ingresses, err := s.ingresses.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	classes, err := s.classes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	o := &plan.Objects{
		Ingresses: ingresses, Classes: classes,
		Service: func(namespace, name string) *v1.Service {
			svc, err := s.services.Services(namespace).Get(name)
			if err != nil {
				return nil
			}
			return svc
		},
		Certificate: func(namespace, name string) (*tls.Certificate, error) { return s.secrets.certificate(namespace, name) },
	}
	s.kinds.addTo(o)
	return o, nil
}

// sameSpec reports whether an update changed nothing that plans use, but only the status or metadata such as
// resourceVersion.
func sameSpec(before, after any) bool {
	switch a := after.(type) {
	case *netv1.Ingress:
		b, ok := before.(*netv1.Ingress)
		return ok && a.Generation == b.Generation && sameAnnotations(a.Annotations, b.Annotations) && a.DeletionTimestamp.Equal(b.DeletionTimestamp)
	case *v1.Service:
		b, ok := before.(*v1.Service)
		return ok && a.Spec.Type == b.Spec.Type && samePorts(a.Spec.Ports, b.Spec.Ports)
	}
	return false
}

func sameAnnotations(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

func samePorts(a, b []v1.ServicePort) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		protocol := func(p *string) string {
			if p == nil {
				return ""
			}
			return *p
		}
		if a[i].Name != b[i].Name || a[i].Port != b[i].Port || a[i].Protocol != b[i].Protocol || protocol(a[i].AppProtocol) != protocol(b[i].AppProtocol) {
			return false
		}
	}
	return true
}
