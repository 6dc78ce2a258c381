package daemonset

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
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/balsahq/balsa/leader/controllerref"
	"github.com/balsahq/balsa/leader/revision"
	"github.com/balsahq/balsa/leader/workqueue"
)

var controllerKind = apps.SchemeGroupVersion.WithKind("DaemonSet")

type controller struct {
	env       workqueue.Env
	sets      appslisters.DaemonSetLister
	nodes     corelisters.NodeLister
	pods      cache.Indexer
	revisions cache.Indexer
	pending   *controllerref.Pending
	failures  *flowcontrol.Backoff
	loop      *workqueue.Loop[workqueue.Key]
}

// New returns the controller of DaemonSets.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	sets, nodes := env.Informers.Apps().V1().DaemonSets(), env.Informers.Core().V1().Nodes()
	podInformer := env.Informers.Core().V1().Pods().Informer()
	revisions := env.Informers.Apps().V1().ControllerRevisions().Informer()
	c := &controller{
		env: env, sets: sets.Lister(), nodes: nodes.Lister(), pods: podInformer.GetIndexer(), revisions: revisions.GetIndexer(),
		pending: controllerref.NewPending(), failures: flowcontrol.NewBackOff(time.Second, 15*time.Minute),
	}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		controllerref.Index(podInformer),
		controllerref.Index(revisions),
		workqueue.Watch(c.loop, sets.Informer(), func(old, now *apps.DaemonSet) {
			if now == nil {
				c.pending.Forget(old.UID)
			}
			c.loop.Add(workqueue.KeyOf(workqueue.Newest(old, now)))
		}),
		workqueue.Watch(c.loop, podInformer, c.podChanged),
		workqueue.Watch(c.loop, nodes.Informer(), c.nodeChanged),
		workqueue.Watch(c.loop, revisions, func(old, now *apps.ControllerRevision) {
			for _, r := range workqueue.Either(old, now) {
				if k, ok := workqueue.ControllerKey(r, apps.SchemeGroupVersion.String(), controllerKind.Kind); ok {
					c.loop.Add(k)
				}
			}
		}),
	)
}

func (c *controller) podChanged(old, now *v1.Pod) {
	c.pending.Observe(workqueue.Newest(old, now))
	owners, orphan := workqueue.Owners(controllerKind, old, now)
	for _, k := range owners {
		c.loop.Add(k)
	}
	if orphan {
		c.offer(now)
	}
}

func (c *controller) offer(p *v1.Pod) {
	all, err := c.sets.DaemonSets(p.Namespace).List(labels.Everything())
	if err != nil {
		return // a lister over a cache does not fail
	}
	workqueue.Adopters(all, func(o *apps.DaemonSet) *metav1.LabelSelector { return o.Spec.Selector }, p, func(o *apps.DaemonSet) { c.loop.Add(workqueue.KeyOf(o)) })
}

// nodeChanged queues every DaemonSet that wants something else of the node than before.
func (c *controller) nodeChanged(old, now *v1.Node) {
	if old != nil && now != nil && reflect.DeepEqual(old.Labels, now.Labels) && reflect.DeepEqual(old.Spec.Taints, now.Spec.Taints) {
		return
	}
	all, err := c.sets.List(labels.Everything())
	if err != nil {
		return
	}
	for _, ds := range all {
		var was, is [2]bool
		if old != nil {
			was[0], was[1] = fits(ds, old)
		}
		if now != nil {
			is[0], is[1] = fits(ds, now)
		}
		if was != is || old == nil || now == nil {
			c.loop.Add(workqueue.KeyOf(ds))
		}
	}
}

func (c *controller) reconcile(ctx context.Context, key workqueue.Key) error {
	ds, err := c.sets.DaemonSets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	selector, err := metav1.LabelSelectorAsSelector(ds.Spec.Selector)
	if err != nil || selector.Empty() {
		c.env.Events.Event(reference(ds), v1.EventTypeWarning, "SelectingAll", "This daemon set is selecting all pods. A non-empty selector is required.")
		return nil
	}
	if ds.DeletionTimestamp != nil {
		return nil
	}
	history := c.history(ds, selector)
	current, old, err := history.Sync(ctx)
	if errors.Is(err, revision.ErrCollision) {
		return errors.Join(err, c.bumpCollisions(ctx, ds))
	}
	if controllerref.NamespaceEnding(err) {
		return nil
	}
	if err != nil {
		return err
	}
	candidates := controllerref.Candidates[*v1.Pod](c.pods, ds)
	settled := c.pending.Settled(ds.UID, controllerref.Objects(candidates))
	mine, err := c.claimer(ds, selector).Claim(ctx, candidates)
	if err != nil {
		return err
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	v := view{
		ds: ds, nodes: nodes, pods: byNode(mine), hash: current.Labels[apps.DefaultDaemonSetUniqueLabelKey], now: time.Now(),
		retry: func(node string) time.Duration { return c.retry(ds, node) },
	}
	return c.carryOut(ctx, v, settled, func() error {
		return history.Trim(ctx, old, int(historyLimit(ds)), func(r *apps.ControllerRevision) bool { return inUse(r, mine) })
	})
}

func (c *controller) carryOut(ctx context.Context, v view, settled bool, trim func() error) error {
	key := workqueue.KeyOf(v.ds)
	var failure error
	if settled {
		p := decide(v)
		failure = c.execute(ctx, v, p)
		if p.again > 0 {
			c.loop.AddAfter(key, p.again)
		}
	} else {
		c.loop.AddAfter(key, 10*time.Second) // the event we wait for queues it sooner
	}
	status, again := statusOf(v)
	if again > 0 {
		c.loop.AddAfter(key, again)
	}
	return errors.Join(failure, trim(), c.writeStatus(ctx, v.ds, status))
}

func (c *controller) history(ds *apps.DaemonSet, selector labels.Selector) *revision.History {
	return &revision.History{
		Client: c.env.Client, Cache: c.revisions, Owner: ds, Kind: controllerKind, Selector: selector,
		Template: &ds.Spec.Template, Labels: ds.Spec.Template.Labels, HashLabel: apps.DefaultDaemonSetUniqueLabelKey,
		Collisions: ds.Status.CollisionCount, Fresh: c.fresh(ds),
	}
}

func (c *controller) fresh(ds *apps.DaemonSet) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) {
		return c.env.Client.AppsV1().DaemonSets(ds.Namespace).Get(ctx, ds.Name, metav1.GetOptions{})
	}
}

func (c *controller) claimer(ds *apps.DaemonSet, selector labels.Selector) controllerref.Claimer[*v1.Pod] {
	return controllerref.Claimer[*v1.Pod]{
		Owner: ds, Kind: controllerKind, Selector: selector, Fresh: c.fresh(ds),
		Patch: func(ctx context.Context, p *v1.Pod, patch []byte) error {
			_, err := c.env.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}
}

func historyLimit(ds *apps.DaemonSet) int32 {
	if ds.Spec.RevisionHistoryLimit == nil {
		return 10
	}
	return *ds.Spec.RevisionHistoryLimit
}

func inUse(r *apps.ControllerRevision, mine []*v1.Pod) bool {
	for _, p := range mine {
		if p.Labels[apps.ControllerRevisionHashLabelKey] == r.Labels[apps.DefaultDaemonSetUniqueLabelKey] {
			return true
		}
	}
	return false
}

func byNode(mine []*v1.Pod) map[string][]*v1.Pod {
	out := map[string][]*v1.Pod{}
	for _, p := range mine {
		node := nodeOf(p)
		out[node] = append(out[node], p)
	}
	return out
}

// retry paces the replacement of pods that fail on a node, each time longer.
func (c *controller) retry(ds *apps.DaemonSet, node string) time.Duration {
	id := string(ds.UID) + "/" + node
	now := c.failures.Clock.Now()
	if c.failures.IsInBackOffSinceUpdate(id, now) {
		return c.failures.Get(id)
	}
	c.failures.Next(id, now)
	return 0
}

func (c *controller) execute(ctx context.Context, v view, p plan) error {
	_, created := controllerref.SlowStart(len(p.create), func(i int) error { return c.createPod(ctx, v, p.create[i]) })
	if controllerref.NamespaceEnding(created) {
		return nil
	}
	removed := controllerref.Parallel(len(p.remove), func(i int) error { return c.deletePod(ctx, v.ds, p.remove[i]) })
	return errors.Join(created, removed)
}

func (c *controller) createPod(ctx context.Context, v view, node string) error {
	made, err := c.env.Client.CoreV1().Pods(v.ds.Namespace).Create(ctx, newPod(v.ds, node, v.hash), metav1.CreateOptions{})
	if err != nil {
		c.pending.Unfinished(v.ds.UID, err)
		if !controllerref.NamespaceEnding(err) {
			c.env.Events.Eventf(reference(v.ds), v1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return err
	}
	c.pending.Wrote(v.ds.UID, made)
	c.env.Events.Eventf(reference(v.ds), v1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", made.Name)
	return nil
}

func (c *controller) deletePod(ctx context.Context, ds *apps.DaemonSet, p *v1.Pod) error {
	if p.Status.Phase == v1.PodFailed {
		c.env.Events.Eventf(reference(ds), v1.EventTypeWarning, "FailedDaemonPod", "Found failed daemon pod %s/%s on node %s, will try to kill it", p.Namespace, p.Name, p.Spec.NodeName)
	}
	c.pending.Deleted(ds.UID, p.UID)
	err := c.env.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		c.pending.Forget(ds.UID)
		c.env.Events.Eventf(reference(ds), v1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		return err
	}
	c.env.Events.Eventf(reference(ds), v1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", p.Name)
	return nil
}

func (c *controller) bumpCollisions(ctx context.Context, ds *apps.DaemonSet) error {
	status := *ds.Status.DeepCopy()
	next := int32(1)
	if status.CollisionCount != nil {
		next = *status.CollisionCount + 1
	}
	status.CollisionCount = &next
	return c.writeStatus(ctx, ds, status)
}

func (c *controller) writeStatus(ctx context.Context, ds *apps.DaemonSet, status apps.DaemonSetStatus) error {
	if reflect.DeepEqual(ds.Status, status) {
		return nil
	}
	ds = ds.DeepCopy()
	ds.Status = status
	_, err := c.env.Client.AppsV1().DaemonSets(ds.Namespace).UpdateStatus(ctx, ds, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func reference(ds *apps.DaemonSet) *v1.ObjectReference {
	return &v1.ObjectReference{
		APIVersion: apps.SchemeGroupVersion.String(), Kind: controllerKind.Kind,
		Namespace: ds.Namespace, Name: ds.Name, UID: ds.UID, ResourceVersion: ds.ResourceVersion,
	}
}
