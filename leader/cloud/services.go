package cloud

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/leader/workqueue"
)

// everything is the one key of a loop that looks at all objects each time.
type everything struct{}

// ServiceController writes the provider's outcomes to Services of type LoadBalancer.
//
// It watches Services and Nodes and writes, of Services, status.loadBalancer, the provider's condition and the finalizer.
// It never touches a Service that the provider does not serve and has not taken on.
type ServiceController struct {
	env      workqueue.Env
	lb       LoadBalancers
	services corelisters.ServiceLister
	nodes    corelisters.NodeLister
	loop     *workqueue.Loop[everything]
	// ahead holds writes that the cache does not show yet. Only the loop's one worker uses it.
	ahead map[types.UID]written
}

// written is a Service as the cache has it, and as it was written.
type written struct{ cached, now *v1.Service }

// hides reports whether the cache is still behind the write.
func (w written) hides(cached *v1.Service) bool {
	if w.now == nil || cached == w.cached {
		return w.now != nil
	}
	order, err := resourceversion.CompareResourceVersion(cached.ResourceVersion, w.now.ResourceVersion)
	return err == nil && order < 0
}

// NewServices returns the controller of Services. It has one worker, because each outcome depends on all other Services.
func NewServices(env workqueue.Env, lb LoadBalancers) (*ServiceController, error) {
	services, nodes := env.Informers.Core().V1().Services(), env.Informers.Core().V1().Nodes()
	c := &ServiceController{env: env, lb: lb, services: services.Lister(), nodes: nodes.Lister(), ahead: map[types.UID]written{}}
	c.loop = workqueue.NewLoop(env, 1, c.reconcile)
	return c, errors.Join(
		workqueue.Watch(c.loop, services.Informer(), func(old, now *v1.Service) {
			for _, s := range workqueue.Either(old, now) {
				if s.Spec.Type == v1.ServiceTypeLoadBalancer || c.taken(s) {
					c.Again()
					return
				}
			}
		}),
		workqueue.Watch(c.loop, nodes.Informer(), func(old, now *v1.Node) {
			if old == nil || now == nil || !sameNode(old, now) {
				c.Again()
			}
		}),
	)
}

// Need makes the first reconciliation wait for one more cache, which the provider reads.
func (c *ServiceController) Need(synced cache.DoneChecker) { c.loop.Need(synced) }

// Again queues a reconciliation of all Services, after the provider's answers have changed. It does not block.
func (c *ServiceController) Again() { c.loop.Add(everything{}) }

// Run implements workqueue.Runner.
func (c *ServiceController) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// sameNode reports whether an update changed nothing of a Node that load balancers use.
func sameNode(a, b *v1.Node) bool {
	ready := func(n *v1.Node) bool {
		c := condition(n, v1.NodeReady)
		return c != nil && c.Status == v1.ConditionTrue
	}
	_, outA := a.Labels[v1.LabelNodeExcludeBalancers]
	_, outB := b.Labels[v1.LabelNodeExcludeBalancers]
	return outA == outB && ready(a) == ready(b) && apiequality.Semantic.DeepEqual(a.Status.Addresses, b.Status.Addresses)
}

func (c *ServiceController) taken(svc *v1.Service) bool {
	return meta.FindStatusCondition(svc.Status.Conditions, c.lb.Condition()) != nil
}

func (c *ServiceController) reconcile(ctx context.Context, _ everything) error {
	all, errs := c.listServices()
	outcomes := c.lb.Settle(ctx, all)
	for _, svc := range all.Leaving {
		if err := c.release(ctx, svc); err != nil {
			errs = append(errs, err)
		}
	}
	for i, svc := range all.Served {
		if err := c.settle(ctx, svc, outcomes[i]); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// listServices returns the current state from the caches.
func (c *ServiceController) listServices() (all Services, errs []error) {
	services, err := c.services.List(labels.Everything())
	errs = append(errs, err)
	all.Nodes, err = c.nodes.List(labels.Everything())
	errs = append(errs, err)
	behind := make(map[types.UID]written, len(c.ahead))
	for _, svc := range services {
		if w := c.ahead[svc.UID]; w.hides(svc) {
			behind[svc.UID] = written{cached: svc, now: w.now}
			svc = w.now
		}
		switch workFor(svc, c.lb) {
		case serve:
			all.Served = append(all.Served, svc)
		case release:
			all.Leaving = append(all.Leaving, svc)
		}
	}
	c.ahead = behind
	return all, errs
}

func (c *ServiceController) settle(ctx context.Context, svc *v1.Service, o Outcome) error {
	want := settled(svc, c.lb.Condition(), o)
	if want == nil {
		return nil
	}
	if err := c.write(ctx, want); err != nil {
		return err
	}
	before := meta.FindStatusCondition(svc.Status.Conditions, c.lb.Condition())
	if now := meta.FindStatusCondition(want.Status.Conditions, c.lb.Condition()); before == nil || before.Message != now.Message || before.Reason != now.Reason {
		if o.Problem != nil {
			c.env.Events.Event(svc, v1.EventTypeWarning, o.Reason, o.Problem.Error())
			return nil
		}
	}
	if !apiequality.Semantic.DeepEqual(svc.Status.LoadBalancer, want.Status.LoadBalancer) && len(o.Ingress) > 0 {
		c.env.Events.Event(svc, v1.EventTypeNormal, o.Reason, "The Service is reached at "+addresses(o.Ingress)+".")
	}
	return nil
}

func (c *ServiceController) release(ctx context.Context, svc *v1.Service) error {
	if err := c.lb.Release(ctx, svc); err != nil {
		c.env.Events.Event(svc, v1.EventTypeWarning, "ReleaseFailed", err.Error())
		return fmt.Errorf("release the load balancer of %s: %w", workqueue.KeyOf(svc), err)
	}
	return c.write(ctx, released(svc, c.lb.Condition()))
}

// write also writes metadata: the status of a Service is the way upstream's controller takes for its finalizer, too.
func (c *ServiceController) write(ctx context.Context, want *v1.Service) error {
	got, err := c.env.Client.CoreV1().Services(want.Namespace).UpdateStatus(ctx, want, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("service %s: %w", workqueue.KeyOf(want), err)
	}
	cached, err := c.services.Services(want.Namespace).Get(want.Name)
	if err != nil {
		return nil // gone
	}
	if order, err := resourceversion.CompareResourceVersion(cached.ResourceVersion, got.ResourceVersion); err != nil || order < 0 {
		c.ahead[want.UID] = written{cached: cached, now: got}
	}
	return nil
}

func addresses(list []v1.LoadBalancerIngress) string {
	out := make([]string, len(list))
	for i, in := range list {
		if out[i] = in.IP; in.IP == "" {
			out[i] = in.Hostname
		}
	}
	return strings.Join(out, " and ")
}
