package statefulset

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

	"github.com/balsahq/balsa/leader/controllerref"
	"github.com/balsahq/balsa/leader/revision"
	"github.com/balsahq/balsa/leader/workqueue"
)

type controller struct {
	env       workqueue.Env
	sets      appslisters.StatefulSetLister
	claims    corelisters.PersistentVolumeClaimLister
	pods      cache.Indexer
	revisions cache.Indexer
	pending   *controllerref.Pending
	loop      *workqueue.Loop[workqueue.Key]
}

// New returns the controller of StatefulSets.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	sets, claims := env.Informers.Apps().V1().StatefulSets(), env.Informers.Core().V1().PersistentVolumeClaims()
	podInformer := env.Informers.Core().V1().Pods().Informer()
	revisions := env.Informers.Apps().V1().ControllerRevisions().Informer()
	c := &controller{
		env: env, sets: sets.Lister(), claims: claims.Lister(), pods: podInformer.GetIndexer(), revisions: revisions.GetIndexer(),
		pending: controllerref.NewPending(),
	}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	workqueue.Need(c.loop, claims.Informer(), revisions)
	return c.loop, errors.Join(
		controllerref.Index(podInformer),
		controllerref.Index(revisions),
		workqueue.Watch(c.loop, sets.Informer(), func(old, now *apps.StatefulSet) {
			if now == nil {
				c.pending.Forget(old.UID)
			}
			c.loop.Add(workqueue.KeyOf(workqueue.Newest(old, now)))
		}),
		workqueue.Watch(c.loop, podInformer, c.podChanged),
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
	all, err := c.sets.StatefulSets(p.Namespace).List(labels.Everything())
	if err != nil {
		return // a lister over a cache does not fail
	}
	workqueue.Adopters(all, func(o *apps.StatefulSet) *metav1.LabelSelector { return o.Spec.Selector }, p, func(o *apps.StatefulSet) {
		if ordinalOf(o, p) >= 0 {
			c.loop.Add(workqueue.KeyOf(o))
		}
	})
}

func (c *controller) reconcile(ctx context.Context, key workqueue.Key) error {
	set, err := c.sets.StatefulSets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil || selector.Empty() {
		return nil // validation forbids it
	}
	history := c.history(set, selector)
	update, old, err := history.Sync(ctx)
	switch {
	case errors.Is(err, revision.ErrCollision):
		return errors.Join(err, c.bumpCollisions(ctx, set))
	case controllerref.NamespaceEnding(err):
		return nil
	case err != nil:
		return err
	}
	v, err := c.view(set, update, old)
	if err != nil {
		return err
	}
	candidates := controllerref.Candidates[*v1.Pod](c.pods, set)
	settled := c.pending.Settled(set.UID, controllerref.Objects(candidates))
	if v.pods, err = c.claim(ctx, set, selector, candidates); err != nil {
		return err
	}
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
	status := c.writeStatus(ctx, set, statusOf(v, collisions(set)))
	return errors.Join(failure, status, history.Trim(ctx, old, historyLimit(set), func(r *apps.ControllerRevision) bool { return inUse(r, v) }))
}

func collisions(set *apps.StatefulSet) *int32 {
	if set.Status.CollisionCount == nil {
		return new(int32)
	}
	return set.Status.CollisionCount
}

func (c *controller) history(set *apps.StatefulSet, selector labels.Selector) *revision.History {
	return &revision.History{
		Client: c.env.Client, Cache: c.revisions, Owner: set, Kind: controllerKind, Selector: selector,
		Template: &set.Spec.Template, Labels: set.Spec.Template.Labels, HashLabel: "controller.kubernetes.io/hash",
		Collisions: set.Status.CollisionCount, Fresh: c.fresh(set),
	}
}

func (c *controller) fresh(set *apps.StatefulSet) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) {
		return c.env.Client.AppsV1().StatefulSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	}
}

// view finds the revision the set is at, which is the new one when nothing is known of an older.
func (c *controller) view(set *apps.StatefulSet, update *apps.ControllerRevision, old []*apps.ControllerRevision) (view, error) {
	v := view{set: set, update: template{update.Name, &set.Spec.Template}, now: time.Now()}
	v.current = v.update
	for _, r := range old {
		if r.Name == set.Status.CurrentRevision {
			t, err := revision.Template(r)
			if err != nil {
				return view{}, err
			}
			v.current = template{r.Name, t}
		}
	}
	return v, nil
}

func (c *controller) claim(ctx context.Context, set *apps.StatefulSet, selector labels.Selector, candidates []*v1.Pod) ([]*v1.Pod, error) {
	var ours []*v1.Pod
	for _, p := range candidates {
		if ordinalOf(set, p) >= 0 {
			ours = append(ours, p)
		}
	}
	return controllerref.Claimer[*v1.Pod]{
		Owner: set, Kind: controllerKind, Selector: selector, Fresh: c.fresh(set),
		Patch: func(ctx context.Context, p *v1.Pod, patch []byte) error {
			_, err := c.env.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}.Claim(ctx, ours)
}

func historyLimit(set *apps.StatefulSet) int {
	if set.Spec.RevisionHistoryLimit == nil {
		return 10
	}
	return int(*set.Spec.RevisionHistoryLimit)
}

func inUse(r *apps.ControllerRevision, v view) bool {
	if r.Name == v.current.revision || r.Name == v.update.revision {
		return true
	}
	for _, p := range v.pods {
		if p.Labels[apps.StatefulSetRevisionLabel] == r.Name {
			return true
		}
	}
	return false
}

func (c *controller) bumpCollisions(ctx context.Context, set *apps.StatefulSet) error {
	status := *set.Status.DeepCopy()
	next := *collisions(set) + 1
	status.CollisionCount = &next
	return c.writeStatus(ctx, set, status)
}

func (c *controller) writeStatus(ctx context.Context, set *apps.StatefulSet, status apps.StatefulSetStatus) error {
	if reflect.DeepEqual(set.Status, status) {
		return nil
	}
	set = set.DeepCopy()
	set.Status = status
	_, err := c.env.Client.AppsV1().StatefulSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func reference(set *apps.StatefulSet) *v1.ObjectReference {
	return &v1.ObjectReference{
		APIVersion: apps.SchemeGroupVersion.String(), Kind: controllerKind.Kind,
		Namespace: set.Namespace, Name: set.Name, UID: set.UID, ResourceVersion: set.ResourceVersion,
	}
}
