package garbage

import (
	"context"
	"errors"
	"fmt"
	"time"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policy "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/leader/workqueue"
)

const (
	// settling is how long a change of the kinds is left to settle before discovery is asked; a burst counts once.
	settling = 300 * time.Millisecond
	// discoverRetry follows a discovery with errors.
	discoverRetry = 10 * time.Second
	// unsettledRetry is the wait for lists that are still under way.
	unsettledRetry = 200 * time.Millisecond
)

// errUnknownKind: an owner's kind is not served, or not yet.
var errUnknownKind = errors.New("kind is not served")

type controller struct {
	env       workqueue.Env
	metadata  metadata.Interface
	discovery discovery.DiscoveryInterface
	graph     *graph
	kinds     *kinds
	sources   *sources
	changed   chan struct{}
	loop      *workqueue.Loop[types.UID]
}

// New returns the garbage collector.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	m, err := metadata.NewForConfig(env.Rest)
	if err != nil {
		return nil, fmt.Errorf("garbage collector: %w", err)
	}
	shared := map[schema.GroupVersionResource]cache.SharedIndexInformer{}
	for _, gvr := range watchedAnyway {
		informer, err := env.Informers.ForResource(gvr)
		if err != nil {
			return nil, fmt.Errorf("garbage collector: %w", err)
		}
		shared[gvr] = informer.Informer()
	}
	return build(env, workers, m, env.Client.Discovery(), shared), nil
}

// watchedAnyway are the kinds other controllers of the term always watch; a second watch would cost the server another
// encoding of each of their events.
var watchedAnyway = []schema.GroupVersionResource{
	v1.SchemeGroupVersion.WithResource("endpoints"),
	v1.SchemeGroupVersion.WithResource("namespaces"),
	v1.SchemeGroupVersion.WithResource("nodes"),
	v1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
	v1.SchemeGroupVersion.WithResource("persistentvolumes"),
	v1.SchemeGroupVersion.WithResource("pods"),
	v1.SchemeGroupVersion.WithResource("replicationcontrollers"),
	v1.SchemeGroupVersion.WithResource("resourcequotas"),
	v1.SchemeGroupVersion.WithResource("serviceaccounts"),
	v1.SchemeGroupVersion.WithResource("services"),
	apps.SchemeGroupVersion.WithResource("controllerrevisions"),
	apps.SchemeGroupVersion.WithResource("daemonsets"),
	apps.SchemeGroupVersion.WithResource("deployments"),
	apps.SchemeGroupVersion.WithResource("replicasets"),
	apps.SchemeGroupVersion.WithResource("statefulsets"),
	batch.SchemeGroupVersion.WithResource("cronjobs"),
	batch.SchemeGroupVersion.WithResource("jobs"),
	discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
	policy.SchemeGroupVersion.WithResource("poddisruptionbudgets"),
	rbacv1.SchemeGroupVersion.WithResource("clusterroles"),
	storagev1.SchemeGroupVersion.WithResource("storageclasses"),
}

func build(env workqueue.Env, workers int, m metadata.Interface, d discovery.DiscoveryInterface, shared map[schema.GroupVersionResource]cache.SharedIndexInformer) workqueue.Runner {
	c := &controller{env: env, metadata: m, discovery: d, graph: newGraph(), kinds: &kinds{}, changed: make(chan struct{}, 1)}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	c.sources = &sources{
		metadata: m, shared: shared, graph: c.graph, running: map[schema.GroupVersionResource]*source{}, notify: c.kindsChanged,
		look: func(uids ...types.UID) {
			for _, uid := range uids {
				c.loop.Add(uid)
			}
		},
	}
	return workqueue.RunAll(workqueue.RunnerFunc(c.follow), c.loop)
}

func (c *controller) kindsChanged() {
	select {
	case c.changed <- struct{}{}:
	default: // one is waiting already
	}
}

// follow keeps one watch a kind, as kinds come and go, until ctx ends.
func (c *controller) follow(ctx context.Context) error {
	defer c.sources.wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	again := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.changed:
			again = true
			timer.Reset(settling)
			continue
		case <-timer.C:
		}
		resources, err := c.kinds.refresh(c.discovery)
		if resources != nil {
			c.sources.sync(ctx, resources)
		}
		if err != nil && ctx.Err() == nil {
			c.env.Log.Debug("discovery is incomplete, will retry", "controller", c.env.Name, "err", err)
			timer.Reset(discoverRetry)
		} else if again { // a kind is served a little after it is defined
			again = false
			timer.Reset(discoverRetry / 2)
		}
	}
}

func (c *controller) reconcile(ctx context.Context, uid types.UID) error {
	v, ok := c.graph.view(uid)
	if !ok {
		return nil
	}
	if !c.sources.settled(time.Now()) {
		c.loop.AddAfter(uid, unsettledRetry)
		return nil
	}
	switch {
	case !v.seen:
		return c.verify(ctx, v)
	case v.deleting && v.orphan:
		return c.orphanDependents(ctx, v)
	case v.waiting():
		return c.finishForeground(ctx, v)
	case v.deleting || len(v.owners) == 0:
		return nil
	}
	owners, err := c.standings(ctx, v)
	if err != nil {
		return err
	}
	return errors.Join(c.carryOut(ctx, v, decide(v, owners)), c.unresolved(v, owners))
}

// unresolved asks for another look when an owner's kind is unknown: it may be served later.
func (c *controller) unresolved(v view, owners []standing) error {
	for i, s := range owners {
		if s == unclear && c.resolvable(v, i) {
			return fmt.Errorf("owner %s %s of %s %s/%s: %w", v.owners[i].Kind, v.owners[i].Name, v.kind, v.namespace, v.name, errUnknownKind)
		}
	}
	return nil
}

// resolvable: an owner whose kind may turn up later, unlike a namespaced owner of a cluster-wide object.
func (c *controller) resolvable(v view, i int) bool {
	_, known := c.kinds.lookup(groupOf(v.owners[i].APIVersion), v.owners[i].Kind)
	return !known
}

// verify asks the API about an owner that no watch has shown.
func (c *controller) verify(ctx context.Context, v view) error {
	there, err := c.exists(ctx, v.group, v.kind, v.namespace, v.name, v.uid)
	if errors.Is(err, errUnknownKind) {
		c.kindsMayLag()
		return err
	}
	if err != nil || there {
		return err
	}
	// Each dependent may describe the owner in its own way, so each finds out for itself.
	for i := range v.dependents {
		c.loop.Add(v.dependents[i].uid)
	}
	return nil
}

// kindsMayLag asks discovery again, in case the kind is served by now.
func (c *controller) kindsMayLag() { c.kindsChanged() }

// exists asks the API whether the object is there under this very UID.
func (c *controller) exists(ctx context.Context, group, kind, namespace, name string, uid types.UID) (bool, error) {
	asked := identity{group: group, kind: kind, namespace: namespace, name: name, uid: uid}
	if c.graph.isGone(asked) {
		return false, nil
	}
	r, ok := c.kinds.lookup(group, kind)
	if !ok {
		return false, fmt.Errorf("%s.%s: %w", kind, group, errUnknownKind)
	}
	if !r.namespaced {
		namespace = ""
	}
	o, err := c.metadata.Resource(r.gvr).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && o.UID != uid {
		c.graph.absent(asked)
		return false, nil
	}
	return err == nil, err
}

// standings finds out about every owner: from the graph when it has seen it, from the API otherwise.
func (c *controller) standings(ctx context.Context, v view) ([]standing, error) {
	out := make([]standing, len(v.owners))
	for i, ref := range v.owners {
		if o := v.ownersNow[i]; o != nil {
			if o.waiting() {
				out[i] = waiting
			}
			continue
		}
		r, known := c.kinds.lookup(groupOf(ref.APIVersion), ref.Kind)
		if known && r.namespaced && v.namespace == "" {
			out[i] = unclear // a namespaced owner of a cluster-wide object: nothing says in which namespace
			continue
		}
		there, err := c.exists(ctx, groupOf(ref.APIVersion), ref.Kind, v.namespace, ref.Name, ref.UID)
		switch {
		case errors.Is(err, errUnknownKind):
			c.kindsMayLag()
			out[i] = unclear
		case err != nil:
			return nil, err
		case !there:
			out[i] = dangling
		}
	}
	return out, nil
}
