package endpoints

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/endpointslice"
	"k8s.io/endpointslice/metrics"
	"k8s.io/endpointslice/topologycache"
	sliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"

	"github.com/balsahq/balsa/leader/controllerref"
	"github.com/balsahq/balsa/leader/workqueue"
)

const (
	sliceManager = "endpointslice-controller.k8s.io"
	perSlice     = 100
)

// errStale asks for another try when the cache has caught up.
var errStale = fmt.Errorf("%w: it does not show our last write of EndpointSlices yet", workqueue.ErrStale)

type slices struct {
	env        workqueue.Env
	services   corelisters.ServiceLister
	pods       corelisters.PodLister
	nodes      corelisters.NodeLister
	slices     discoverylisters.EndpointSliceLister
	tracker    *sliceutil.EndpointSliceTracker
	triggers   *sliceutil.TriggerTimeTracker
	topology   *topologycache.TopologyCache
	reconciler *endpointslice.Reconciler
	loop       *workqueue.Loop[workqueue.Key]
}

// NewSlices returns the controller of the EndpointSlices of Services that select pods.
func NewSlices(env workqueue.Env, workers int) (workqueue.Runner, error) {
	metrics.RegisterMetrics()
	core, inf := env.Informers.Core().V1(), env.Informers.Discovery().V1().EndpointSlices()
	c := &slices{
		env: env, services: core.Services().Lister(), pods: core.Pods().Lister(), nodes: core.Nodes().Lister(), slices: inf.Lister(),
		tracker: sliceutil.NewEndpointSliceTracker(), triggers: sliceutil.NewTriggerTimeTracker(), topology: topologycache.NewTopologyCache(),
	}
	c.reconciler = endpointslice.NewReconciler(env.Client, c.nodes, perSlice, c.tracker, c.topology, env.Events, sliceManager,
		endpointslice.WithPreferSameTrafficDistributionEnabled(true))
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		workqueue.Watch(c.loop, core.Services().Informer(), func(old, now *v1.Service) {
			c.loop.Add(workqueue.KeyOf(workqueue.Newest(old, now)))
		}),
		workqueue.Watch(c.loop, core.Pods().Informer(), func(old, now *v1.Pod) {
			for _, k := range touched(c.services, old, now) {
				c.loop.Add(k)
			}
		}),
		workqueue.Watch(c.loop, core.Nodes().Informer(), c.nodeChanged),
		workqueue.Watch(c.loop, inf.Informer(), c.sliceChanged),
	)
}

// nodeChanged: what a node tells the topology hints is its zone, its size and whether it is ready.
func (c *slices) nodeChanged(old, now *v1.Node) {
	if old != nil && now != nil && nodeReady(old) == nodeReady(now) &&
		reflect.DeepEqual(old.Labels, now.Labels) && old.Status.Allocatable.Cpu().Equal(*now.Status.Allocatable.Cpu()) {
		return
	}
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return // a lister over a cache does not fail
	}
	c.topology.SetNodes(klog.Background(), all)
	for _, name := range c.topology.GetOverloadedServices() {
		if k, err := parseKey(name); err == nil {
			c.loop.Add(k)
		}
	}
}

func parseKey(s string) (workqueue.Key, error) {
	for i := range s {
		if s[i] == '/' {
			return workqueue.Key{Namespace: s[:i], Name: s[i+1:]}, nil
		}
	}
	return workqueue.Key{}, fmt.Errorf("%q is not namespace/name", s)
}

func nodeReady(n *v1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

func (c *slices) sliceChanged(old, now *discoveryv1.EndpointSlice) {
	latest := workqueue.Newest(old, now)
	if latest.Labels[discoveryv1.LabelManagedBy] != sliceManager && (old == nil || old.Labels[discoveryv1.LabelManagedBy] != sliceManager) {
		return
	}
	expected := now == nil && c.tracker.HandleDeletion(old)
	if expected || now != nil && !c.tracker.ShouldSync(now) {
		return // our own write
	}
	for _, s := range workqueue.Either(old, now) {
		if name := s.Labels[discoveryv1.LabelServiceName]; name != "" {
			c.loop.Add(workqueue.Key{Namespace: s.Namespace, Name: name})
		}
	}
}

// syncResult is upstream's label of a round for a Service.
func syncResult(err error) string {
	if err != nil {
		return "error"
	}
	return "success"
}

func (c *slices) reconcile(ctx context.Context, key workqueue.Key) error {
	s, err := c.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.triggers.DeleteService(key.Namespace, key.Name)
		c.reconciler.DeleteService(key.Namespace, key.Name)
		c.tracker.DeleteService(key.Namespace, key.Name)
		return nil // the garbage collector takes the slices
	}
	if err != nil || !served(s) {
		return err
	}
	candidates, err := c.pods.Pods(key.Namespace).List(labels.SelectorFromSet(s.Spec.Selector))
	if err != nil {
		return err
	}
	have, err := c.slices.EndpointSlices(key.Namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: s.Name, discoveryv1.LabelManagedBy: sliceManager,
	}))
	if err != nil {
		return err
	}
	var live []*discoveryv1.EndpointSlice
	for _, e := range have {
		if e.DeletionTimestamp == nil {
			live = append(live, e)
		}
	}
	if c.tracker.StaleSlices(s, live) {
		return errStale
	}
	changed := c.triggers.ComputeEndpointLastChangeTriggerTime(key.Namespace, s, candidates)
	err = c.reconciler.Reconcile(klog.FromContext(ctx), s, candidates, live, changed)
	metrics.EndpointSliceSyncs.WithLabelValues(syncResult(err)).Inc()
	if controllerref.NamespaceEnding(err) {
		return nil
	}
	return err
}
