package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"

	"github.com/balsahq/balsa/leader/workqueue"
)

type controller struct {
	env        workqueue.Env
	namespaces corelisters.NamespaceLister
	metadata   metadata.Interface
	discovery  discovery.DiscoveryInterface
	loop       *workqueue.Loop[string]
}

// New returns the controller of ending namespaces.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	m, err := metadata.NewForConfig(env.Rest)
	if err != nil {
		return nil, fmt.Errorf("namespace controller: %w", err)
	}
	return build(env, workers, m, env.Client.Discovery())
}

func build(env workqueue.Env, workers int, m metadata.Interface, d discovery.DiscoveryInterface) (workqueue.Runner, error) {
	namespaces := env.Informers.Core().V1().Namespaces()
	c := &controller{env: env, namespaces: namespaces.Lister(), metadata: m, discovery: d}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		workqueue.Watch(c.loop, namespaces.Informer(), func(_, now *v1.Namespace) {
			if now != nil && now.DeletionTimestamp != nil {
				c.loop.Add(now.Name)
			}
		}),
		workqueue.Watch(c.loop, env.Informers.Core().V1().Pods().Informer(), func(old, now *v1.Pod) {
			if now != nil {
				return
			}
			if ns, err := c.namespaces.Get(old.Namespace); err == nil && ns.DeletionTimestamp != nil {
				c.loop.Add(ns.Name)
			}
		}),
	)
}

func (c *controller) reconcile(ctx context.Context, name string) error {
	ns, err := c.namespaces.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if ns.DeletionTimestamp == nil || !slices.Contains(ns.Spec.Finalizers, v1.FinalizerKubernetes) {
		return nil
	}
	f := c.empty(ctx, name)
	if ctx.Err() != nil {
		return nil
	}
	if f.done() {
		return c.finalize(ctx, ns)
	}
	if err := c.report(ctx, ns, f); err != nil {
		return err
	}
	c.loop.AddAfter(name, lookAgain(time.Since(ns.DeletionTimestamp.Time)))
	return nil
}

func (c *controller) report(ctx context.Context, ns *v1.Namespace, f *findings) error {
	conditions, changed := merge(ns.Status.Conditions, f.conditions(time.Now()))
	if !changed && ns.Status.Phase == v1.NamespaceTerminating {
		return nil
	}
	ns = ns.DeepCopy()
	ns.Status.Conditions = conditions
	ns.Status.Phase = v1.NamespaceTerminating
	_, err := c.env.Client.CoreV1().Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *controller) finalize(ctx context.Context, ns *v1.Namespace) error {
	ns = ns.DeepCopy()
	ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f v1.FinalizerName) bool { return f == v1.FinalizerKubernetes })
	_, err := c.env.Client.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

var podsResource = v1.SchemeGroupVersion.WithResource("pods")

// empty deletes all content: pods first, and everything else once the last pod is gone, so that what runs never sees the
// policies or secrets around it vanish.
func (c *controller) empty(ctx context.Context, namespace string) *findings {
	f := &findings{left: map[schema.GroupVersionResource]int{}, finalizer: map[string]int{}}
	resources, err := c.resources()
	f.discovery = err
	for _, r := range resources {
		if r.gvr == podsResource {
			c.clear(ctx, namespace, r, f)
		}
	}
	if len(f.left) > 0 || len(f.delete) > 0 {
		return f
	}
	for _, r := range resources {
		if r.gvr != podsResource && ctx.Err() == nil {
			c.clear(ctx, namespace, r, f)
		}
	}
	return f
}

// resource is a namespaced kind that can be listed and deleted.
type resource struct {
	gvr        schema.GroupVersionResource
	collection bool // deletable all at once
}

// resources lists the kinds to clear. With an error, the list holds what could be discovered.
func (c *controller) resources() ([]resource, error) {
	lists, err := discovery.ServerPreferredNamespacedResources(c.discovery)
	var out []resource
	for _, l := range lists {
		gv, parseErr := schema.ParseGroupVersion(l.GroupVersion)
		if parseErr != nil {
			err = errors.Join(err, parseErr)
			continue
		}
		for _, r := range l.APIResources {
			if slices.Contains(r.Verbs, "delete") && slices.Contains(r.Verbs, "list") {
				out = append(out, resource{gvr: gv.WithResource(r.Name), collection: slices.Contains(r.Verbs, "deletecollection")})
			}
		}
	}
	return out, err
}

// clear deletes the objects of one kind and notes what is left of them.
func (c *controller) clear(ctx context.Context, namespace string, r resource, f *findings) {
	client := c.metadata.Resource(r.gvr).Namespace(namespace)
	found, err := client.List(ctx, metav1.ListOptions{})
	if gone(err) || err == nil && len(found.Items) == 0 {
		return
	}
	if err == nil {
		err = c.remove(ctx, client, r, found.Items)
	}
	if err == nil {
		found, err = client.List(ctx, metav1.ListOptions{})
	}
	if gone(err) {
		return
	}
	if err != nil {
		f.delete = append(f.delete, fmt.Errorf("%s: %w", r.gvr, err))
		return
	}
	if n := len(found.Items); n > 0 {
		f.left[r.gvr] = n
	}
	for i := range found.Items {
		for _, name := range found.Items[i].Finalizers {
			f.finalizer[name]++
		}
	}
}

func (c *controller) remove(ctx context.Context, client metadata.ResourceInterface, r resource, items []metav1.PartialObjectMetadata) error {
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	if r.collection {
		return client.DeleteCollection(ctx, options, metav1.ListOptions{})
	}
	var errs []error
	for i := range items {
		if err := client.Delete(ctx, items[i].Name, options); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// gone: the kind itself was removed, or does not take the verb after all.
func gone(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}
