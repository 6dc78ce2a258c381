package aggregation

import (
	"context"
	"errors"
	"net/url"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/util/proxy"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
)

// serviceNamespace is a namespace with the Service of a target. It holds that namespace's Services and EndpointSlices,
// and runs upstream's controller that writes whether targets are available. Upstream runs one controller for all
// namespaces, which holds all Services and EndpointSlices of the cluster.
type serviceNamespace struct {
	a         *Aggregation
	namespace string
	factory   kubeinformers.SharedInformerFactory
	slices    proxy.EndpointSliceGetter
	handlers  []handler

	cancel context.CancelFunc
	done   sync.WaitGroup
}

// handler is an event handler of upstream's controller, which expects all objects again from time to time (a resync).
type handler struct {
	cache.ResourceEventHandler
	registration cache.ResourceEventHandlerRegistration
	every        time.Duration
}

// errNotFollowed: upstream's controller could not be created; the log says why.
var errNotFollowed = errors.New("the endpoints of its namespace are not followed")

// newServiceNamespace starts to follow a namespace.
func newServiceNamespace(a *Aggregation, namespace string) (*serviceNamespace, error) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &serviceNamespace{
		a: a, namespace: namespace, cancel: cancel,
		factory: kubeinformers.NewSharedInformerFactoryWithOptions(a.cfg.Core, 0, kubeinformers.WithNamespace(namespace), kubeinformers.WithTransform(dropAllButEndpoints)),
	}
	slices := r.factory.Discovery().V1().EndpointSlices()
	var err error
	if r.slices, err = proxy.NewEndpointSliceIndexerGetter(slices); err != nil {
		cancel()
		return nil, err
	}
	controller, err := remote.New(namespaceInformer{a.services, r}, r.factory.Core().V1().Services(), slices, a.client.ApiregistrationV1(),
		&transport.DialHolder{Dial: a.cfg.Dial}, func() ([]byte, []byte) { return a.cfg.Certificate.CertPEM(), a.cfg.Certificate.KeyPEM() },
		serviceResolver(r.resolve), a.metrics)
	if err != nil {
		cancel()
		return nil, err
	}
	r.factory.Start(ctx.Done())
	r.done.Go(fault.Contained("control/aggregation", func() { controller.Run(workers, ctx.Done()) }))
	for _, h := range r.handlers {
		if h.every > 0 {
			r.done.Go(fault.Contained("control/aggregation", func() { r.resync(ctx, h) }))
		}
	}
	return r, nil
}

// dropAllButEndpoints drops the fields that are not needed to find an endpoint.
func dropAllButEndpoints(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
		m.SetAnnotations(nil)
	}
	return o, nil
}

// stop ends the goroutines of newArea. It does not wait for availability checks in progress, which take a few seconds
// at most.
func (r *serviceNamespace) stop() {
	r.cancel()
	r.factory.Shutdown()
	r.done.Wait()
	for _, h := range r.handlers {
		_ = r.a.services.Informer().RemoveEventHandler(h.registration) // the informer may have stopped
	}
}

// wanted reports whether the Service of a target is in the namespace.
func (r *serviceNamespace) wanted(targets map[string]*apiregistrationv1.APIService) bool {
	for _, s := range targets {
		if r.holds(s) {
			return true
		}
	}
	return false
}

func (r *serviceNamespace) holds(o any) bool {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	s, ok := o.(*apiregistrationv1.APIService)
	return ok && s.Spec.Service != nil && s.Spec.Service.Namespace == r.namespace
}

// resync passes all targets to upstream's controller again, so that it checks whether they still answer, since no event
// reports that. Upstream's informer does the same, for local APIServices too.
func (r *serviceNamespace) resync(ctx context.Context, h handler) {
	tick := time.NewTicker(h.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, s := range r.a.all() {
			if r.holds(s) {
				h.OnUpdate(s, s)
			}
		}
	}
}

// synced reports whether Services and their endpoints have been read.
func (r *serviceNamespace) synced() bool {
	return r.factory.Core().V1().Services().Informer().HasSynced() && r.factory.Discovery().V1().EndpointSlices().Informer().HasSynced()
}

// resolve returns a ready endpoint of the Service, or the name that an ExternalName Service stands for.
func (r *serviceNamespace) resolve(namespace, name string, port int32) (*url.URL, error) {
	if r == nil {
		return nil, errNotFollowed
	}
	services := r.factory.Core().V1().Services().Lister()
	if s, err := services.Services(namespace).Get(name); err == nil && s.Spec.Type == corev1.ServiceTypeExternalName {
		return proxy.ResolveCluster(services, namespace, name, port)
	}
	return proxy.ResolveEndpoint(services, r.slices, namespace, name, port)
}

type serviceResolver func(namespace, name string, port int32) (*url.URL, error)

// ResolveEndpoint implements upstream's ServiceResolver.
func (s serviceResolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return s(namespace, name, port)
}

// namespaceInformer is the APIService informer that upstream's controller gets: it passes only the targets of one
// namespace.
type namespaceInformer struct {
	apiregistrationinformers.APIServiceInformer
	area *serviceNamespace
}

// Informer implements APIServiceInformer.
func (o namespaceInformer) Informer() cache.SharedIndexInformer {
	return filteredInformer{o.APIServiceInformer.Informer(), o.area}
}

type filteredInformer struct {
	cache.SharedIndexInformer
	area *serviceNamespace
}

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer.
func (s filteredInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, every time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	registration, err := s.AddEventHandler(eventhandler.Contain("control/aggregation", cache.FilteringResourceEventHandler{FilterFunc: s.area.holds, Handler: h}))
	if err == nil {
		s.area.handlers = append(s.area.handlers, handler{h, registration, every})
	}
	return registration, err
}
