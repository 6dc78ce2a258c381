package quota

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/discovery/cached/memory"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/utils/clock"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
	"github.com/balsahq/balsa/leader/workqueue"
)

type controller struct {
	env      workqueue.Env
	quotas   corelisters.ResourceQuotaLister
	metadata metadata.Interface
	mapper   *restmapper.DeferredDiscoveryRESTMapper
	loop     *workqueue.Loop[workqueue.Key]

	mu       sync.Mutex
	registry quota.Registry
	counting map[schema.GroupResource]cache.SharedIndexInformer
	devices  *deviceCount   // nil until a quota limits them
	running  sync.WaitGroup // informers
}

// New returns the controller of ResourceQuotas.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	m, err := metadata.NewForConfig(env.Rest)
	if err != nil {
		return nil, fmt.Errorf("quota controller: %w", err)
	}
	informers := env.Informers.Core().V1()
	lister := func(gvr schema.GroupVersionResource) (cache.GenericLister, error) {
		i, err := env.Informers.ForResource(gvr)
		if err != nil {
			return nil, err
		}
		return i.Lister(), nil
	}
	c := &controller{
		env: env, quotas: informers.ResourceQuotas().Lister(), metadata: m,
		mapper:   restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(env.Client.Discovery())),
		counting: map[schema.GroupResource]cache.SharedIndexInformer{},
		registry: generic.NewRegistry([]quota.Evaluator{
			core.NewPodEvaluator(lister, clock.RealClock{}), core.NewServiceEvaluator(lister), core.NewPersistentVolumeClaimEvaluator(lister),
		}),
	}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return workqueue.RunnerFunc(c.run), errors.Join(
		workqueue.Watch(c.loop, informers.ResourceQuotas().Informer(), func(old, now *v1.ResourceQuota) {
			if now != nil && (old == nil || !equality.Semantic.DeepEqual(old.Spec, now.Spec) || !equality.Semantic.DeepEqual(now.Spec.Hard, now.Status.Hard)) {
				c.loop.Add(workqueue.KeyOf(now))
			}
		}),
		workqueue.Watch(c.loop, informers.Pods().Informer(), func(old, now *v1.Pod) {
			if frees(old, now) {
				c.queue(old.Namespace)
			}
		}),
		workqueue.Watch(c.loop, informers.Services().Informer(), func(old, now *v1.Service) {
			if old != nil && (now == nil || !equality.Semantic.DeepEqual(old.Spec, now.Spec)) {
				c.queue(old.Namespace)
			}
		}),
		workqueue.Watch(c.loop, informers.PersistentVolumeClaims().Informer(), func(old, now *v1.PersistentVolumeClaim) {
			if claimChanges(old, now) {
				c.queue(old.Namespace)
			}
		}),
	)
}

func (c *controller) run(ctx context.Context) error {
	err := c.loop.Run(ctx)
	c.running.Wait()
	return err
}

// queue looks at every quota of a namespace.
func (c *controller) queue(namespace string) {
	all, err := c.quotas.ResourceQuotas(namespace).List(labels.Everything())
	if err != nil {
		return // a lister over a cache does not fail
	}
	for _, q := range all {
		c.loop.Add(workqueue.KeyOf(q))
	}
}

func (c *controller) reconcile(ctx context.Context, key workqueue.Key) error {
	q, err := c.quotas.ResourceQuotas(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var unknown []error
	for gr, alias := range counted(q) {
		if err := c.count(ctx, gr, alias); err != nil {
			unknown = append(unknown, err)
		}
	}
	if limitsDevices(q) {
		if err := c.countDevices(ctx); err != nil {
			unknown = append(unknown, fmt.Errorf("counting devices: %w", err))
		}
	}
	used, err := quota.CalculateUsage(q.Namespace, q.Spec.Scopes, q.Spec.Hard, c.registry, q.Spec.ScopeSelector)
	if err != nil {
		unknown = append(unknown, err)
	}
	status, changed := statusOf(q, used)
	if changed {
		q = q.DeepCopy()
		q.Status = status
		_, err = c.env.Client.CoreV1().ResourceQuotas(q.Namespace).UpdateStatus(ctx, q, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			unknown = append(unknown, err)
		}
	}
	return errors.Join(unknown...)
}

// count makes sure that the number of a kind's objects is known: it starts to watch them when it is first asked, until ctx
// ends, which is Run's, and waits until they are all there.
func (c *controller) count(ctx context.Context, gr schema.GroupResource, alias v1.ResourceName) error {
	informer, err := c.counter(ctx, gr, alias)
	if err != nil {
		return fmt.Errorf("counting %s: %w", gr, err)
	}
	if !cache.WaitFor(ctx, "", informer.HasSyncedChecker()) {
		return ctx.Err()
	}
	return nil
}

func (c *controller) counter(ctx context.Context, gr schema.GroupResource, alias v1.ResourceName) (cache.SharedIndexInformer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if informer := c.counting[gr]; informer != nil {
		return informer, nil
	}
	return c.watch(ctx, gr, alias)
}

func (c *controller) watch(ctx context.Context, gr schema.GroupResource, alias v1.ResourceName) (cache.SharedIndexInformer, error) {
	gvr, err := c.mapper.ResourceFor(gr.WithVersion(""))
	if err != nil {
		c.mapper.Reset() // the kind may be served by now
		if gvr, err = c.mapper.ResourceFor(gr.WithVersion("")); err != nil {
			return nil, err
		}
	}
	informer := metadatainformer.NewFilteredMetadataInformer(c.metadata, gvr, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, nil).Informer()
	changed := func(o any) {
		if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = tomb.Obj
		}
		if m, ok := o.(metav1.Object); ok {
			c.queue(m.GetNamespace())
		}
	}
	// Admission counts what is created under a quota; what this watch had not delivered when a quota was first
	// reckoned (the quota itself, where quotas are counted) is reckoned when it comes.
	_, err = informer.AddEventHandler(eventhandler.Contain("controller events", cache.ResourceEventHandlerFuncs{AddFunc: changed, DeleteFunc: changed}))
	if err := errors.Join(err, informer.SetTransform(workqueue.Strip)); err != nil {
		return nil, err
	}
	c.counting[gr] = informer
	c.registry.Add(generic.NewObjectCountEvaluator(gr, func(namespace string) ([]runtime.Object, error) {
		return list(informer.GetIndexer(), namespace)
	}, alias))
	c.running.Go(fault.Contained("controller", func() { informer.RunWithContext(ctx) }))
	return informer, nil
}

func list(indexer cache.Indexer, namespace string) ([]runtime.Object, error) {
	found, err := indexer.ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil, err
	}
	out := make([]runtime.Object, 0, len(found))
	for _, o := range found {
		if obj, ok := o.(runtime.Object); ok {
			out = append(out, obj)
		}
	}
	return out, nil
}
