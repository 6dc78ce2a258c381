package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/leader/controllerref"
	"github.com/balsahq/balsa/leader/workqueue"
)

var controllerKind = batch.SchemeGroupVersion.WithKind("Job")

// task is a key of the queue: a Job, or a pod that may have lost its Job and still carries our finalizer.
type task struct {
	job    workqueue.Key
	orphan workqueue.Key
}

type controller struct {
	env     workqueue.Env
	jobs    batchlisters.JobLister
	pods    cache.Indexer
	pending *controllerref.Pending
	mu      sync.Mutex
	streaks map[types.UID]streak
	loop    *workqueue.Loop[task]
}

// New returns the controller of Jobs.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	jobs := env.Informers.Batch().V1().Jobs()
	podInformer := env.Informers.Core().V1().Pods().Informer()
	c := &controller{
		env: env, jobs: jobs.Lister(), pods: podInformer.GetIndexer(),
		pending: controllerref.NewPending(), streaks: map[types.UID]streak{},
	}
	registerMetrics()
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		controllerref.Index(podInformer),
		workqueue.Watch(c.loop, jobs.Informer(), c.jobChanged),
		workqueue.Watch(c.loop, podInformer, c.podChanged),
	)
}

func (c *controller) jobChanged(old, now *batch.Job) {
	if now == nil {
		c.pending.Forget(old.UID)
		c.setStreak(old.UID, streak{})
		for _, p := range controllerref.Of[*v1.Pod](c.pods, old) {
			c.loop.Add(task{orphan: workqueue.KeyOf(p)})
		}
		return
	}
	c.loop.Add(task{job: workqueue.KeyOf(now)})
}

func (c *controller) podChanged(old, now *v1.Pod) {
	c.pending.Observe(workqueue.Newest(old, now))
	owners, orphan := workqueue.Owners(controllerKind, old, now)
	for _, k := range owners {
		c.loop.Add(task{job: k})
	}
	if now != nil && tracked(now) && c.ownerOf(now) == nil {
		c.loop.Add(task{orphan: workqueue.KeyOf(now)})
	}
	if orphan {
		c.offer(now)
	}
}

// ownerOf is the Job that controls the pod, or nil when there is none (any more).
func (c *controller) ownerOf(p *v1.Pod) *batch.Job {
	k, ok := workqueue.ControllerKey(p, batch.SchemeGroupVersion.String(), controllerKind.Kind)
	if !ok {
		return nil
	}
	j, err := c.jobs.Jobs(k.Namespace).Get(k.Name)
	if err != nil || !metav1.IsControlledBy(p, j) {
		return nil
	}
	return j
}

func (c *controller) offer(p *v1.Pod) {
	all, err := c.jobs.Jobs(p.Namespace).List(labels.Everything())
	if err != nil {
		return // a lister over a cache does not fail
	}
	workqueue.Adopters(all, func(o *batch.Job) *metav1.LabelSelector { return o.Spec.Selector }, p, func(o *batch.Job) { c.loop.Add(task{job: workqueue.KeyOf(o)}) })
}

func (c *controller) streak(uid types.UID) streak {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streaks[uid]
}

func (c *controller) setStreak(uid types.UID, s streak) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s == (streak{}) {
		delete(c.streaks, uid)
	} else {
		c.streaks[uid] = s
	}
}

func (c *controller) reconcile(ctx context.Context, t task) error {
	if t.orphan.Name != "" {
		return c.release(ctx, t.orphan)
	}
	j, err := c.jobs.Jobs(t.job.Namespace).Get(t.job.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if j.Spec.ManagedBy != nil && *j.Spec.ManagedBy != batch.JobControllerName {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(j.Spec.Selector)
	if err != nil || selector.Empty() {
		return nil // validation forbids it
	}
	if _, done := Finished(j); done {
		c.setStreak(j.UID, streak{})
		return c.strip(ctx, controllerref.Of[*v1.Pod](c.pods, j))
	}
	candidates := controllerref.Candidates[*v1.Pod](c.pods, j)
	settled := c.pending.Settled(j.UID, controllerref.Objects(candidates))
	mine, err := c.claimer(j, selector).Claim(ctx, candidates)
	if err != nil {
		return err
	}
	if !settled {
		c.loop.AddAfter(t, 10*time.Second) // the event we wait for queues it sooner
	}
	return c.carryOut(ctx, j, decide(view{job: j, pods: mine, settled: settled, streak: c.streak(j.UID), now: time.Now()}))
}

func (c *controller) claimer(j *batch.Job, selector labels.Selector) controllerref.Claimer[*v1.Pod] {
	return controllerref.Claimer[*v1.Pod]{
		Owner: j, Kind: controllerKind, Selector: selector,
		Fresh: func(ctx context.Context) (metav1.Object, error) {
			return c.env.Client.BatchV1().Jobs(j.Namespace).Get(ctx, j.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, p *v1.Pod, patch []byte) error {
			_, err := c.env.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}
}

func (c *controller) carryOut(ctx context.Context, j *batch.Job, p plan) (err error) {
	began := time.Now()
	defer func() { synced(j, &p, began, err) }()
	removed := controllerref.Parallel(len(p.remove), func(i int) error { return c.deletePod(ctx, j, p.remove[i]) })
	made, created := controllerref.SlowStart(len(p.create), func(i int) error { return c.createPod(ctx, j, p.create[i], p.counts) })
	if controllerref.NamespaceEnding(created) {
		created = nil
	}
	p.status.Active -= int32(len(p.create) - made)
	if p.again > 0 {
		c.loop.AddAfter(task{job: workqueue.KeyOf(j)}, p.again)
	}
	if err := c.writeStatus(ctx, j, p.status); err != nil {
		return errors.Join(removed, created, err)
	}
	finished(j, &p.status)
	c.setStreak(j.UID, p.streak)
	for _, e := range p.events {
		c.env.Events.Event(reference(j), e.kind, e.reason, e.message)
	}
	return errors.Join(removed, created, c.strip(ctx, p.strip))
}

func (c *controller) writeStatus(ctx context.Context, j *batch.Job, status batch.JobStatus) error {
	if reflect.DeepEqual(j.Status, status) {
		return nil
	}
	j = j.DeepCopy()
	j.Status = status
	_, err := c.env.Client.BatchV1().Jobs(j.Namespace).UpdateStatus(ctx, j, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// strip takes our finalizer off pods that are counted.
func (c *controller) strip(ctx context.Context, list []*v1.Pod) error {
	return controllerref.Parallel(len(list), func(i int) error {
		p := list[i]
		if !tracked(p) {
			return nil
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": p.UID, "$deleteFromPrimitiveList/finalizers": []string{batch.JobTrackingFinalizer},
		}})
		if err != nil {
			return err
		}
		_, err = c.env.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsConflict(err) {
			return nil // gone, or replaced by another of the same name
		}
		return err
	})
}

// release frees a pod whose Job is gone, as the API confirms.
func (c *controller) release(ctx context.Context, k workqueue.Key) error {
	o, exists, err := c.pods.GetByKey(k.String())
	p, ok := o.(*v1.Pod)
	if err != nil || !exists || !ok || !tracked(p) || c.ownerOf(p) != nil {
		return err
	}
	if owner, ok := workqueue.ControllerKey(p, batch.SchemeGroupVersion.String(), controllerKind.Kind); ok {
		j, err := c.env.Client.BatchV1().Jobs(owner.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err == nil && metav1.IsControlledBy(p, j) {
			return nil
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return c.strip(ctx, []*v1.Pod{p})
}

func (c *controller) createPod(ctx context.Context, j *batch.Job, index int, counts map[int]int) error {
	made, err := c.env.Client.CoreV1().Pods(j.Namespace).Create(ctx, newPod(j, index, counts[index]), metav1.CreateOptions{})
	if err != nil {
		c.pending.Unfinished(j.UID, err)
		if !controllerref.NamespaceEnding(err) {
			c.env.Events.Eventf(reference(j), v1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return err
	}
	c.pending.Wrote(j.UID, made)
	c.env.Events.Eventf(reference(j), v1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", made.Name)
	return nil
}

// newPod builds a pod; index is -1 in a Job that is not indexed.
func newPod(j *batch.Job, index, failures int) *v1.Pod {
	p := controllerref.FromTemplate(&j.Spec.Template, j, controllerKind)
	if !slices.Contains(p.Finalizers, batch.JobTrackingFinalizer) {
		p.Finalizers = append(p.Finalizers, batch.JobTrackingFinalizer)
	}
	if index < 0 {
		return p
	}
	n := strconv.Itoa(index)
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Annotations[batch.JobCompletionIndexAnnotation], p.Labels[batch.JobCompletionIndexAnnotation] = n, n
	if perIndex(j) {
		p.Annotations[failureCount] = strconv.Itoa(failures)
	}
	p.GenerateName = fmt.Sprintf("%s-%s-", j.Name, n)
	p.Spec.Hostname = j.Name + "-" + n
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			addIndexVariable(&list[i])
		}
	}
	return p
}

const indexVariable = "JOB_COMPLETION_INDEX"

func addIndexVariable(c *v1.Container) {
	for _, e := range c.Env {
		if e.Name == indexVariable {
			return
		}
	}
	c.Env = append(c.Env, v1.EnvVar{Name: indexVariable, ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{
		FieldPath: fmt.Sprintf("metadata.labels['%s']", batch.JobCompletionIndexAnnotation),
	}}})
}

func (c *controller) deletePod(ctx context.Context, j *batch.Job, p *v1.Pod) error {
	c.pending.Deleted(j.UID, p.UID)
	err := c.env.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		c.pending.Forget(j.UID)
		c.env.Events.Eventf(reference(j), v1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		return err
	}
	c.env.Events.Eventf(reference(j), v1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", p.Name)
	return nil
}

func reference(j *batch.Job) *v1.ObjectReference {
	return &v1.ObjectReference{
		APIVersion: batch.SchemeGroupVersion.String(), Kind: controllerKind.Kind,
		Namespace: j.Namespace, Name: j.Name, UID: j.UID, ResourceVersion: j.ResourceVersion,
	}
}
