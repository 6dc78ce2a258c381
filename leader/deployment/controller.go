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

	"github.com/balsahq/balsa/leader/owned"
	"github.com/balsahq/balsa/leader/pods"
	"github.com/balsahq/balsa/leader/work"
)

var controllerKind = apps.SchemeGroupVersion.WithKind("Deployment")

type controller struct {
	env         work.Env
	deployments appslisters.DeploymentLister
	sets        cache.Indexer
	pods        cache.Indexer
	pending     *owned.Pending // ReplicaSets written
	loop        *work.Loop[work.Key]
}

// New returns the controller of Deployments.
func New(env work.Env, workers int) (work.Runner, error) {
	deployments := env.Informers.Apps().V1().Deployments()
	sets := env.Informers.Apps().V1().ReplicaSets().Informer()
	podInformer := env.Informers.Core().V1().Pods().Informer()
	c := &controller{
		env: env, deployments: deployments.Lister(), sets: sets.GetIndexer(), pods: podInformer.GetIndexer(),
		pending: owned.NewPending(),
	}
	c.loop = work.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		owned.Index(sets),
		owned.Index(podInformer),
		work.Watch(c.loop, deployments.Informer(), c.deploymentChanged),
		work.Watch(c.loop, sets, c.setChanged),
		work.Watch(c.loop, podInformer, c.podChanged),
	)
}

func (c *controller) deploymentChanged(old, now *apps.Deployment) {
	if now == nil {
		c.pending.Forget(old.UID)
	}
	c.loop.Add(work.KeyOf(work.Newest(old, now)))
}

func (c *controller) setChanged(old, now *apps.ReplicaSet) {
	c.pending.Observe(work.Newest(old, now))
	owners, orphan := work.Owners(controllerKind, old, now)
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
	work.Adopters(all, func(o *apps.Deployment) *metav1.LabelSelector { return o.Spec.Selector }, s, func(o *apps.Deployment) { c.loop.Add(work.KeyOf(o)) })
}

// podChanged matters to Recreate only, which waits for the last old pod to end.
func (c *controller) podChanged(old, now *v1.Pod) {
	if old == nil || now != nil && (!pods.Terminal(now) || pods.Terminal(old)) {
		return
	}
	key, ok := work.ControllerKey(old, apps.SchemeGroupVersion.String(), "ReplicaSet")
	if !ok {
		return
	}
	o, exists, err := c.sets.GetByKey(key.String())
	s, isSet := o.(*apps.ReplicaSet)
	if err != nil || !exists || !isSet {
		return
	}
	key, ok = work.ControllerKey(s, controllerKind.GroupVersion().String(), controllerKind.Kind)
	if !ok {
		return
	}
	d, err := c.deployments.Deployments(key.Namespace).Get(key.Name)
	if err == nil && d.Spec.Strategy.Type == apps.RecreateDeploymentStrategyType {
		c.loop.Add(key)
	}
}

func (c *controller) reconcile(ctx context.Context, key work.Key) error {
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
	candidates := owned.Candidates[*apps.ReplicaSet](c.sets, d)
	if !c.pending.Settled(d.UID, owned.Objects(candidates)) {
		c.loop.AddAfter(key, 10*time.Second) // the event we wait for queues it sooner
		return nil
	}
	claimer := owned.Claimer[*apps.ReplicaSet]{
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
		for _, p := range owned.Of[*v1.Pod](c.pods, s) {
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
