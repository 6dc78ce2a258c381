package cloud

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/balsahq/balsa/leader/workqueue"
)

// routesAgain is how often the provider's routes are compared without an event, because no event announces a lost route.
const routesAgain = 5 * time.Minute

type routes struct {
	env   workqueue.Env
	ways  Routes
	nodes corelisters.NodeLister
	loop  *workqueue.Loop[everything]
}

// NewRoutes returns the controller that keeps a route of the provider to every node's pods.
//
// It watches Nodes, has one worker, and writes of Nodes the condition NetworkUnavailable. It never touches routes that the
// provider does not list as this cluster's.
func NewRoutes(env workqueue.Env, ways Routes) (workqueue.Runner, error) {
	informer := env.Informers.Core().V1().Nodes()
	c := &routes{env: env, ways: ways, nodes: informer.Lister()}
	c.loop = workqueue.NewLoop(env, 1, c.reconcile)
	return c.loop, workqueue.Watch(c.loop, informer.Informer(), func(old, now *v1.Node) {
		if old == nil || now == nil || !slices.Equal(podNetworks(old), podNetworks(now)) || networkKnown(now, true) != networkKnown(old, true) {
			c.loop.Add(everything{})
		}
	})
}

// routePlan has the missing and the superfluous routes, by node and destination.
func routePlan(list []*v1.Node, have []Route) (create, remove []Route) {
	type id struct{ node, destination string }
	missing := map[id]bool{}
	for _, n := range list {
		for _, p := range podNetworks(n) {
			missing[id{n.Name, p}] = true
		}
	}
	seen := map[id]bool{}
	for _, r := range have {
		k := id{r.Node, r.Destination}
		if seen[k] || !missing[k] {
			remove = append(remove, r)
		}
		seen[k] = true
	}
	for k := range missing {
		if !seen[k] {
			create = append(create, Route{Node: k.node, Destination: k.destination})
		}
	}
	slices.SortFunc(create, func(a, b Route) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Destination, b.Destination))
	})
	return create, remove
}

func podNetworks(n *v1.Node) []string {
	if len(n.Spec.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
		return []string{n.Spec.PodCIDR}
	}
	return n.Spec.PodCIDRs
}

func (c *routes) reconcile(ctx context.Context, _ everything) error {
	list, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	have, err := c.ways.List(ctx)
	if err != nil {
		return fmt.Errorf("routes of the provider: %w", err)
	}
	var errs []error
	create, remove := routePlan(list, have)
	for _, r := range remove { // first, because another node may get the destination of a removed route
		if err := c.ways.Delete(ctx, r); err != nil {
			errs = append(errs, fmt.Errorf("remove the route to %s: %w", r.Destination, err))
		}
	}
	lost := map[string]bool{}
	for _, r := range create {
		if err := c.ways.Create(ctx, r); err != nil {
			lost[r.Node] = true
			errs = append(errs, fmt.Errorf("route to %s on node %s: %w", r.Destination, r.Node, err))
		}
	}
	for _, n := range list {
		reached := len(podNetworks(n)) > 0 && !lost[n.Name]
		if !networkKnown(n, reached) {
			errs = append(errs, c.tell(ctx, n, reached))
		}
	}
	c.loop.AddAfter(everything{}, routesAgain)
	return errors.Join(errs...)
}

func networkKnown(n *v1.Node, reached bool) bool {
	c := condition(n, v1.NodeNetworkUnavailable)
	return c != nil && (c.Status == v1.ConditionFalse) == reached
}

func (c *routes) tell(ctx context.Context, n *v1.Node, reached bool) error {
	now := metav1.Now()
	state := v1.NodeCondition{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionTrue, Reason: "NoRouteCreated",
		Message: "The provider has no route to the node's pods.", LastHeartbeatTime: now, LastTransitionTime: now}
	if reached {
		state.Status, state.Reason, state.Message = v1.ConditionFalse, "RouteCreated", "The provider has a route to the node's pods."
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []v1.NodeCondition{state}}})
	if err != nil {
		return err
	}
	_, err = c.env.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
