package replicaset

import (
	"context"
	"errors"
	"reflect"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/leader/controllerref"
	"github.com/balsahq/balsa/leader/pods"
	"github.com/balsahq/balsa/leader/workqueue"
)

type controller struct {
	env     workqueue.Env
	kind    kind
	pods    cache.Indexer
	pending *controllerref.Pending
	loop    *workqueue.Loop[workqueue.Key]
}

// New returns the controller of ReplicaSets.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	return build(env, replicaSets(env), workers)
}

// NewReplicationController returns the controller of ReplicationControllers.
func NewReplicationController(env workqueue.Env, workers int) (workqueue.Runner, error) {
	return build(env, replicationControllers(env), workers)
}

func build(env workqueue.Env, k kind, workers int) (workqueue.Runner, error) {
	podInformer := env.Informers.Core().V1().Pods().Informer()
	c := &controller{env: env, kind: k, pods: podInformer.GetIndexer(), pending: controllerref.NewPending()}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		controllerref.Index(podInformer),
		workqueue.Watch(c.loop, k.informer, c.setChanged),
		workqueue.Watch(c.loop, podInformer, c.podChanged),
	)
}

func (c *controller) setChanged(old, now metav1.Object) {
	if now == nil {
		c.pending.Forget(old.GetUID())
		c.loop.Add(workqueue.KeyOf(old))
		return
	}
	if old != nil && old.GetUID() != now.GetUID() {
		c.pending.Forget(old.GetUID())
	}
	c.loop.Add(workqueue.KeyOf(now))
}

func (c *controller) podChanged(old, now *v1.Pod) {
	if old != nil && now != nil && old.ResourceVersion == now.ResourceVersion {
		return
	}
	c.pending.Observe(workqueue.Newest(old, now))
	owners, orphan := workqueue.Owners(c.kind.gvk, old, now)
	for _, k := range owners {
		c.loop.Add(k)
	}
	if orphan {
		c.offer(now)
	}
}

// offer queues every set that would adopt the pod.
func (c *controller) offer(p *v1.Pod) {
	all, err := c.kind.list(p.Namespace)
	if err != nil {
		return // a lister over a cache does not fail
	}
	workqueue.Adopters(all, func(o *apps.ReplicaSet) *metav1.LabelSelector { return o.Spec.Selector }, p, func(o *apps.ReplicaSet) { c.loop.Add(workqueue.KeyOf(o)) })
}

func (c *controller) reconcile(ctx context.Context, key workqueue.Key) error {
	set, err := c.kind.get(key)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil || selector.Empty() {
		return nil // validation forbids it; such a set must not adopt everything
	}
	candidates := controllerref.Candidates[*v1.Pod](c.pods, set)
	settled := c.pending.Settled(set.UID, controllerref.Objects(candidates))

	active, terminating, err := c.claim(ctx, set, selector, candidates)
	if err != nil {
		return err
	}
	now := time.Now()
	var failure error
	if settled && set.DeletionTimestamp == nil {
		failure = c.execute(ctx, set, decide(set, active, c.related(set), now))
	}
	if !settled {
		c.loop.AddAfter(key, 10*time.Second)
	}
	status, next := statusOf(set, active, terminating, failure, now)
	if c.kind.gvk.Kind != "ReplicaSet" {
		status.TerminatingReplicas = nil
	}
	if next > 0 {
		c.loop.AddAfter(key, next)
	}
	if reflect.DeepEqual(status, set.Status) {
		return failure
	}
	set = set.DeepCopy()
	set.Status = status
	return errors.Join(failure, ignoreGone(c.kind.updateStatus(ctx, set)))
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// claim returns the set's active pods, and the number of those that terminate. Pods that ended are no replicas and stay as they
// are.
func (c *controller) claim(ctx context.Context, set *apps.ReplicaSet, selector labels.Selector, candidates []*v1.Pod) (active []*v1.Pod, terminating int, err error) {
	var live []*v1.Pod
	for _, p := range candidates {
		switch {
		case pods.Active(p):
			live = append(live, p)
		case p.DeletionTimestamp != nil && !pods.Terminal(p) && metav1.IsControlledBy(p, set):
			terminating++
		}
	}
	claimer := controllerref.Claimer[*v1.Pod]{
		Owner: set, Kind: c.kind.gvk, Selector: selector,
		Fresh: func(ctx context.Context) (metav1.Object, error) { return c.kind.fresh(ctx, workqueue.KeyOf(set)) },
		Patch: func(ctx context.Context, p *v1.Pod, patch []byte) error {
			_, err := c.env.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}
	active, err = claimer.Claim(ctx, live)
	return active, terminating, err
}

// related lists the pods of every set under the same owner, such as those of one Deployment.
func (c *controller) related(set *apps.ReplicaSet) []*v1.Pod {
	ref := metav1.GetControllerOfNoCopy(set)
	if ref == nil {
		return controllerref.Of[*v1.Pod](c.pods, set)
	}
	sets, err := c.kind.list(set.Namespace)
	if err != nil {
		return nil
	}
	var all []*v1.Pod
	for _, s := range sets {
		if r := metav1.GetControllerOfNoCopy(s); r != nil && r.UID == ref.UID {
			all = append(all, controllerref.Of[*v1.Pod](c.pods, s)...)
		}
	}
	return all
}

func (c *controller) execute(ctx context.Context, set *apps.ReplicaSet, p plan) error {
	if p.create > 0 {
		_, err := controllerref.SlowStart(p.create, func(int) error { return c.createPod(ctx, set) })
		if controllerref.NamespaceEnding(err) {
			return nil
		}
		return err
	}
	return controllerref.Parallel(len(p.remove), func(i int) error { return c.deletePod(ctx, set, p.remove[i]) })
}

func (c *controller) createPod(ctx context.Context, set *apps.ReplicaSet) error {
	pod := controllerref.FromTemplate(&set.Spec.Template, set, c.kind.gvk)
	made, err := c.env.Client.CoreV1().Pods(set.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		c.pending.Unfinished(set.UID, err)
		if !controllerref.NamespaceEnding(err) {
			c.env.Events.Eventf(c.reference(set), v1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return err
	}
	c.pending.Wrote(set.UID, made)
	c.env.Events.Eventf(c.reference(set), v1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", made.Name)
	return nil
}

func (c *controller) deletePod(ctx context.Context, set *apps.ReplicaSet, p *v1.Pod) error {
	c.pending.Deleted(set.UID, p.UID)
	err := c.env.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone already
	}
	if err != nil {
		c.pending.Forget(set.UID)
		c.env.Events.Eventf(c.reference(set), v1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		return err
	}
	c.env.Events.Eventf(c.reference(set), v1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", p.Name)
	return nil
}

// reference returns the object reference for events, because cached objects have no kind.
func (c *controller) reference(set *apps.ReplicaSet) *v1.ObjectReference {
	return &v1.ObjectReference{
		APIVersion: c.kind.gvk.GroupVersion().String(), Kind: c.kind.gvk.Kind,
		Namespace: set.Namespace, Name: set.Name, UID: set.UID, ResourceVersion: set.ResourceVersion,
	}
}
