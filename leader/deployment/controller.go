package deployment

import (
	"context"
	"errors"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/leader/controllerref"
	"github.com/balsahq/balsa/leader/pods"
	"github.com/balsahq/balsa/leader/workqueue"
)

var controllerKind = apps.SchemeGroupVersion.WithKind("Deployment")

type controller struct {
	env         workqueue.Env
	deployments appslisters.DeploymentLister
	sets        cache.Indexer
	pods        cache.Indexer
	pending     *controllerref.Pending // ReplicaSets written
	loop        *workqueue.Loop[workqueue.Key]
}

// New returns the controller of Deployments.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	deployments := env.Informers.Apps().V1().Deployments()
	sets := env.Informers.Apps().V1().ReplicaSets().Informer()
	podInformer := env.Informers.Core().V1().Pods().Informer()
	c := &controller{
		env: env, deployments: deployments.Lister(), sets: sets.GetIndexer(), pods: podInformer.GetIndexer(),
		pending: controllerref.NewPending(),
	}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		controllerref.Index(sets),
		controllerref.Index(podInformer),
		workqueue.Watch(c.loop, deployments.Informer(), c.deploymentChanged),
		workqueue.Watch(c.loop, sets, c.setChanged),
		workqueue.Watch(c.loop, podInformer, c.podChanged),
	)
}

func (c *controller) deploymentChanged(old, now *apps.Deployment) {
	if now == nil {
		c.pending.Forget(old.UID)
	}
	c.loop.Add(workqueue.KeyOf(workqueue.Newest(old, now)))
}

func (c *controller) setChanged(old, now *apps.ReplicaSet) {
	c.pending.Observe(workqueue.Newest(old, now))
	owners, orphan := workqueue.Owners(controllerKind, old, now)
	for _, k := range owners {
		c.loop.Add(k)
	}
	if orphan {
		c.offer(now)
	}
}

// offer queues every Deployment that would adopt the set.
func (c *controller) offer(s *apps.ReplicaSet) {
	all, err := c.deployments.Deployments(s.Namespace).List(labels.Everything())
	if err != nil {
		return // a lister over a cache does not fail
	}
	workqueue.Adopters(all, func(o *apps.Deployment) *metav1.LabelSelector { return o.Spec.Selector }, s, func(o *apps.Deployment) { c.loop.Add(workqueue.KeyOf(o)) })
}

// podChanged matters to Recreate only, which waits for the last old pod to end.
func (c *controller) podChanged(old, now *v1.Pod) {
	if old == nil || now != nil && (!pods.Terminal(now) || pods.Terminal(old)) {
		return
	}
	key, ok := workqueue.ControllerKey(old, apps.SchemeGroupVersion.String(), "ReplicaSet")
	if !ok {
		return
	}
	o, exists, err := c.sets.GetByKey(key.String())
	s, isSet := o.(*apps.ReplicaSet)
	if err != nil || !exists || !isSet {
		return
	}
	key, ok = workqueue.ControllerKey(s, controllerKind.GroupVersion().String(), controllerKind.Kind)
	if !ok {
		return
	}
	d, err := c.deployments.Deployments(key.Namespace).Get(key.Name)
	if err == nil && d.Spec.Strategy.Type == apps.RecreateDeploymentStrategyType {
		c.loop.Add(key)
	}
}

func (c *controller) reconcile(ctx context.Context, key workqueue.Key) error {
	d, err := c.deployments.Deployments(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil || selector.Empty() {
		c.env.Events.Event(reference(d), v1.EventTypeWarning, "SelectingAll", "This deployment is selecting all pods. A non-empty selector is required.")
		return nil
	}
	candidates := controllerref.Candidates[*apps.ReplicaSet](c.sets, d)
	if !c.pending.Settled(d.UID, controllerref.Objects(candidates)) {
		c.loop.AddAfter(key, 10*time.Second) // the event we wait for queues it sooner
		return nil
	}
	claimer := controllerref.Claimer[*apps.ReplicaSet]{
		Owner: d, Kind: controllerKind, Selector: selector,
		Fresh: func(ctx context.Context) (metav1.Object, error) {
			return c.env.Client.AppsV1().Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, s *apps.ReplicaSet, patch []byte) error {
			_, err := c.env.Client.AppsV1().ReplicaSets(s.Namespace).Patch(ctx, s.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}
	sets, err := claimer.Claim(ctx, candidates)
	if err != nil {
		return err
	}
	p, err := decide(view{deployment: d, sets: sets, oldRunning: c.oldRunning(d, sets), now: time.Now()})
	if err != nil {
		return err
	}
	return c.carryOut(ctx, d, p)
}

// oldRunning reports whether a pod of an old set has not ended, for a Recreate Deployment.
func (c *controller) oldRunning(d *apps.Deployment, sets []*apps.ReplicaSet) bool {
	if d.Spec.Strategy.Type != apps.RecreateDeploymentStrategyType {
		return false
	}
	_, old := split(d, sets)
	for _, s := range old {
		if s.Status.Replicas > 0 {
			return true
		}
		for _, p := range controllerref.Of[*v1.Pod](c.pods, s) {
			if !pods.Terminal(p) {
				return true
			}
		}
	}
	return false
}

func reference(d *apps.Deployment) *v1.ObjectReference {
	return &v1.ObjectReference{
		APIVersion: controllerKind.GroupVersion().String(), Kind: controllerKind.Kind,
		Namespace: d.Namespace, Name: d.Name, UID: d.UID, ResourceVersion: d.ResourceVersion,
	}
}
