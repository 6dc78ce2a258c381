package apiservers

import (
	"context"
	"errors"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"

	"github.com/balsahq/balsa/leader/workqueue"
)

// Source says where the API is served now.
type Source struct {
	// List returns the address of every server that is alive; none means that nothing is known.
	List func() []netip.AddrPort
	// Changed returns a channel that is closed when List may answer otherwise than before the call. Nil: it never does.
	Changed func() <-chan struct{}
}

// Only is the source of a server that is alone.
func Only(address netip.AddrPort) Source {
	return Source{List: func() []netip.AddrPort { return []netip.AddrPort{address} }}
}

// one is the only key of the queues: the Service as a whole.
type one struct{}

// follow queues a look now and at every change of the source.
func follow(source Source, loop *workqueue.Loop[one]) workqueue.Runner {
	return workqueue.RunnerFunc(func(ctx context.Context) error {
		for {
			var changed <-chan struct{}
			if source.Changed != nil {
				changed = source.Changed()
			}
			loop.Add(one{})
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			}
		}
	})
}

type endpoints struct {
	env    workqueue.Env
	source Source
	lister corelisters.EndpointsLister //nolint:staticcheck // superseded by slices, and still there in every cluster
	loop   *workqueue.Loop[one]
}

// NewEndpoints returns the controller of the Endpoints default/kubernetes.
func NewEndpoints(env workqueue.Env, source Source) (workqueue.Runner, error) {
	informer := env.Informers.Core().V1().Endpoints()
	c := &endpoints{env: env, source: source, lister: informer.Lister()}
	c.loop = workqueue.NewLoop(env, 1, c.reconcile)
	//nolint:staticcheck // see above
	err := workqueue.Watch(c.loop, informer.Informer(), func(old, now *v1.Endpoints) {
		if now == nil {
			now = old
		}
		if now.Namespace == metav1.NamespaceDefault && now.Name == service {
			c.loop.Add(one{})
		}
	})
	return workqueue.RunAll(c.loop, follow(source, c.loop)), err
}

func (c *endpoints) reconcile(ctx context.Context, _ one) error {
	want := endpointsOf(c.source.List())
	if want == nil {
		return nil
	}
	client := c.env.Client.CoreV1().Endpoints(metav1.NamespaceDefault)
	have, err := c.lister.Endpoints(metav1.NamespaceDefault).Get(service)
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && !equality.Semantic.DeepEqual(have.Subsets, want.Subsets):
		have = have.DeepCopy()
		have.Subsets = want.Subsets
		_, err = client.Update(ctx, have, metav1.UpdateOptions{})
	}
	return err
}

type slices struct {
	env    workqueue.Env
	source Source
	lister discoverylisters.EndpointSliceLister
	loop   *workqueue.Loop[one]
}

// NewSlices returns the controller of the EndpointSlices of default/kubernetes.
func NewSlices(env workqueue.Env, source Source) (workqueue.Runner, error) {
	informer := env.Informers.Discovery().V1().EndpointSlices()
	c := &slices{env: env, source: source, lister: informer.Lister()}
	c.loop = workqueue.NewLoop(env, 1, c.reconcile)
	err := workqueue.Watch(c.loop, informer.Informer(), func(old, now *discoveryv1.EndpointSlice) {
		if now == nil {
			now = old
		}
		if ours(now) {
			c.loop.Add(one{})
		}
	})
	return workqueue.RunAll(c.loop, follow(source, c.loop)), err
}

func ours(s *discoveryv1.EndpointSlice) bool {
	return s.Namespace == metav1.NamespaceDefault && s.Labels[discoveryv1.LabelServiceName] == service
}

func (c *slices) reconcile(ctx context.Context, _ one) error {
	want := slicesOf(c.source.List())
	if len(want) == 0 {
		return nil
	}
	all, err := c.lister.EndpointSlices(metav1.NamespaceDefault).List(labels.Everything())
	if err != nil {
		return err
	}
	client := c.env.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	var errs []error
	for _, have := range all {
		if !ours(have) {
			continue
		}
		w := want[have.Name]
		delete(want, have.Name)
		switch {
		case w == nil || w.AddressType != have.AddressType: // the type cannot be changed; the next look makes it anew
			errs = append(errs, ignoreGone(client.Delete(ctx, have.Name, metav1.DeleteOptions{})))
		case !equality.Semantic.DeepEqual(have.Endpoints, w.Endpoints) || !equality.Semantic.DeepEqual(have.Ports, w.Ports):
			have = have.DeepCopy()
			have.Endpoints, have.Ports = w.Endpoints, w.Ports
			_, err := client.Update(ctx, have, metav1.UpdateOptions{})
			errs = append(errs, err)
		}
	}
	for _, w := range want {
		_, err := client.Create(ctx, w, metav1.CreateOptions{})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
