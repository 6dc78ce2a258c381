package ingress

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
	"github.com/balsahq/balsa/overlay/ingress/plan"
)

// definitionRetry is the interval at which a defined kind is requested until it is served. That takes seconds after its
// definition is created, and there is no event for it.
const definitionRetry = time.Second

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// gatewayKinds are the watched kinds of the Gateway API, by resource. Versions are tried in this order.
var gatewayKinds = map[string]struct {
	versions []string
	object   runtime.Object
	list     runtime.Object
}{
	"gatewayclasses":  {[]string{"v1"}, &gw.GatewayClass{}, &gw.GatewayClassList{}},
	"gateways":        {[]string{"v1"}, &gw.Gateway{}, &gw.GatewayList{}},
	"httproutes":      {[]string{"v1"}, &gw.HTTPRoute{}, &gw.HTTPRouteList{}},
	"grpcroutes":      {[]string{"v1"}, &gw.GRPCRoute{}, &gw.GRPCRouteList{}},
	"referencegrants": {[]string{"v1", "v1beta1"}, &gw.ReferenceGrant{}, &gw.ReferenceGrantList{}},
}

// kinds watches the Gateway API's objects where their definitions are installed.
type kinds struct {
	clients    map[string]*rest.RESTClient // by version
	meta       metadata.Interface
	log        *slog.Logger
	changed    func()
	defined    cache.SharedIndexInformer // the names of definitions
	namespaces cache.SharedIndexInformer // the labels of namespaces; runs when Gateways are defined

	mu         sync.Mutex
	by         map[string]*kind
	running    sync.WaitGroup
	wakeEngine chan struct{}
}

type kind struct {
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
}

// gatewayClient is a client of the Gateway API in one version.
func gatewayClient(cfg *rest.Config, version string) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	gv := schema.GroupVersion{Group: gw.GroupName, Version: version}
	for _, k := range gatewayKinds {
		scheme.AddKnownTypes(gv, k.object, k.list)
	}
	metav1.AddToGroupVersion(scheme, gv)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c := rest.CopyConfig(cfg)
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	c.GroupVersion, c.APIPath = &gv, "/apis"
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientFor(c)
}

func newKinds(cfg *rest.Config, log *slog.Logger, changed func()) (*kinds, error) {
	k := &kinds{clients: map[string]*rest.RESTClient{}, log: log, changed: changed, by: map[string]*kind{}, wakeEngine: make(chan struct{}, 1)}
	for _, version := range []string{"v1", "v1beta1"} {
		client, err := gatewayClient(cfg, version)
		if err != nil {
			return nil, fmt.Errorf("ingress: client of the Gateway API: %w", err)
		}
		k.clients[version] = client
	}
	meta, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("ingress: client of definitions: %w", err)
	}
	k.meta = meta
	k.defined = metadatainformer.NewFilteredMetadataInformer(meta, definitions, "", 0, cache.Indexers{}, nil).Informer()
	if err := k.defined.SetTransform(onlyName(false)); err != nil {
		return nil, err
	}
	_, err = k.defined.AddEventHandler(eventhandler.Contain("ingress/kinds", cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { k.wakeRun() }, UpdateFunc: func(any, any) { k.wakeRun() }, DeleteFunc: func(any) { k.wakeRun() },
	}))
	return k, err
}

// onlyName returns a transform that drops all of an object's metadata except its name and, if withLabels is set, its
// labels.
func onlyName(withLabels bool) cache.TransformFunc {
	return func(o any) (any, error) {
		m, ok := o.(*metav1.PartialObjectMetadata)
		if !ok {
			return o, nil
		}
		out := &metav1.PartialObjectMetadata{}
		out.Name, out.ResourceVersion = m.Name, m.ResourceVersion
		if withLabels {
			out.Labels = m.Labels
		}
		return out, nil
	}
}

func (k *kinds) wakeRun() {
	select {
	case k.wakeEngine <- struct{}{}:
	default:
	}
}

// run starts and stops the watches of kinds with their definitions, until ctx ends.
func (k *kinds) run(ctx context.Context) {
	k.running.Go(fault.Contained("ingress/kinds", func() { k.defined.RunWithContext(ctx) }))
	defer k.running.Wait()
	if !cache.WaitForCacheSync(ctx.Done(), k.defined.HasSynced) {
		return
	}
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-k.wakeEngine:
		case <-again.C:
		case <-ctx.Done():
			return
		}
		served := false
		_ = fault.Do("ingress/kinds", func() {
			fault.Point("ingress/kinds")
			served = k.updateWatches(ctx)
		})
		if !served {
			again.Reset(definitionRetry)
		}
	}
}

// updateWatches starts the watches of defined kinds and stops the others. It returns false if a defined kind is not served yet.
func (k *kinds) updateWatches(ctx context.Context) bool {
	all := true
	for resource := range gatewayKinds {
		_, defined, _ := k.defined.GetStore().GetByKey(resource + "." + gw.GroupName)
		k.mu.Lock()
		have := k.by[resource]
		k.mu.Unlock()
		switch {
		case defined && have == nil:
			all = k.start(ctx, resource) && all
		case !defined && have != nil:
			k.mu.Lock()
			delete(k.by, resource)
			k.mu.Unlock()
			have.stop()
			k.changed()
		}
	}
	return all
}

// start watches a kind in the first version that the API serves; false if there is none.
func (k *kinds) start(ctx context.Context, resource string) bool {
	what := gatewayKinds[resource]
	for _, version := range what.versions {
		client := k.clients[version]
		err := client.Get().Resource(resource).Param("limit", "1").Do(ctx).Error()
		if err != nil {
			if !apierrors.IsNotFound(err) && ctx.Err() == nil {
				k.log.Warn("cannot read a kind of the Gateway API; its objects have no effect until it can be read", "kind", resource, "err", err)
			}
			continue
		}
		ctx, stop := context.WithCancel(ctx)
		informer := cache.NewSharedIndexInformer(cache.NewListWatchFromClient(client, resource, "", fields.Everything()), what.object, 0, cache.Indexers{})
		if _, err := informer.AddEventHandler(eventhandler.Contain("ingress/kinds", cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { k.changed() }, DeleteFunc: func(any) { k.changed() },
			UpdateFunc: func(before, after any) {
				if a, ok := after.(metav1.Object); !ok || a.GetGeneration() != before.(metav1.Object).GetGeneration() || a.GetDeletionTimestamp() != nil {
					k.changed()
				}
			},
		})); err != nil {
			stop()
			return false
		}
		k.running.Go(fault.Contained("ingress", func() { informer.RunWithContext(ctx) }))
		k.running.Go(fault.Contained("ingress", func() {
			if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
				k.changed() // also if no object of the kind exists
			}
		}))
		k.mu.Lock()
		k.by[resource] = &kind{informer, stop}
		k.mu.Unlock()
		if resource == "gateways" {
			k.followNamespaces(ctx)
		}
		return true
	}
	return false
}

// followNamespaces watches the labels of namespaces for as long as there may be Gateways.
func (k *kinds) followNamespaces(ctx context.Context) {
	informer := metadatainformer.NewFilteredMetadataInformer(k.meta, v1.SchemeGroupVersion.WithResource("namespaces"), "", 0, cache.Indexers{}, nil).Informer()
	if informer.SetTransform(onlyName(true)) != nil {
		return // a new informer accepts the transform and the handler
	}
	if _, err := informer.AddEventHandler(eventhandler.Contain("ingress/kinds", cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { k.changed() }, DeleteFunc: func(any) { k.changed() },
		UpdateFunc: func(before, after any) {
			b, ok := before.(*metav1.PartialObjectMetadata)
			if a, is := after.(*metav1.PartialObjectMetadata); ok && is && !sameAnnotations(a.Labels, b.Labels) {
				k.changed()
			}
		},
	})); err != nil {
		return
	}
	k.running.Go(fault.Contained("ingress", func() { informer.RunWithContext(ctx) }))
	k.mu.Lock()
	k.namespaces = informer
	k.mu.Unlock()
}

// ready reports whether the first lists of the definitions and of all watched kinds are complete.
func (k *kinds) ready() bool {
	if !k.defined.HasSynced() {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, one := range k.by {
		if !one.informer.HasSynced() {
			return false
		}
	}
	return k.namespaces == nil || k.by["gateways"] == nil || k.namespaces.HasSynced()
}

func all[T any](k *kinds, resource string) (out []T) {
	one := k.by[resource]
	if one == nil {
		return nil
	}
	for _, o := range one.informer.GetStore().List() {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// addTo adds the Gateway API's objects to o.
func (k *kinds) addTo(o *plan.Objects) {
	k.mu.Lock()
	defer k.mu.Unlock()
	o.GatewayClasses, o.Gateways = all[*gw.GatewayClass](k, "gatewayclasses"), all[*gw.Gateway](k, "gateways")
	o.HTTPRoutes, o.GRPCRoutes = all[*gw.HTTPRoute](k, "httproutes"), all[*gw.GRPCRoute](k, "grpcroutes")
	o.Grants = all[*gw.ReferenceGrant](k, "referencegrants")
	if namespaces := k.namespaces; namespaces != nil {
		o.NamespaceLabels = func(name string) (map[string]string, bool) {
			obj, ok, _ := namespaces.GetStore().GetByKey(name)
			m, is := obj.(*metav1.PartialObjectMetadata)
			if !ok || !is {
				return nil, false
			}
			return m.Labels, true
		}
	}
}
