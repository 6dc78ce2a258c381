package cronjob

import (
	"context"
	"errors"
	"reflect"
	"time"

	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/leader/controllerref"
	"github.com/balsahq/balsa/leader/job"
	"github.com/balsahq/balsa/leader/workqueue"
)

var controllerKind = batch.SchemeGroupVersion.WithKind("CronJob")

type controller struct {
	env      workqueue.Env
	cronJobs batchlisters.CronJobLister
	jobs     cache.Indexer
	loop     *workqueue.Loop[workqueue.Key]
}

// New returns the controller of CronJobs.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	cronJobs, jobs := env.Informers.Batch().V1().CronJobs(), env.Informers.Batch().V1().Jobs().Informer()
	c := &controller{env: env, cronJobs: cronJobs.Lister(), jobs: jobs.GetIndexer()}
	registerMetrics()
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		controllerref.Index(jobs),
		workqueue.Watch(c.loop, cronJobs.Informer(), func(old, now *batch.CronJob) {
			c.loop.Add(workqueue.KeyOf(workqueue.Newest(old, now)))
		}),
		workqueue.Watch(c.loop, jobs, func(old, now *batch.Job) {
			if k, ok := workqueue.ControllerKey(workqueue.Newest(old, now), batch.SchemeGroupVersion.String(), controllerKind.Kind); ok {
				c.loop.Add(k)
			}
		}),
	)
}

func (c *controller) reconcile(ctx context.Context, key workqueue.Key) error {
	cached, err := c.cronJobs.CronJobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	cj := cached.DeepCopy()
	jobs := controllerref.Of[*batch.Job](c.jobs, cj)
	if err := c.review(ctx, cj, jobs); err != nil {
		return err
	}
	var failure error
	if cj.DeletionTimestamp == nil {
		failure = errors.Join(c.schedule(ctx, cj), c.trim(ctx, cj, jobs))
	}
	if reflect.DeepEqual(cached.Status, cj.Status) {
		return failure
	}
	_, err = c.env.Client.BatchV1().CronJobs(cj.Namespace).UpdateStatus(ctx, cj, metav1.UpdateOptions{})
	return errors.Join(failure, ignoreGone(err))
}

// review brings the list of active Jobs up to date.
func (c *controller) review(ctx context.Context, cj *batch.CronJob, jobs []*batch.Job) error {
	known := map[types.UID]bool{}
	for _, j := range jobs {
		known[j.UID] = true
		how, done := job.Finished(j)
		switch {
		case !done && !listed(cj, j.UID):
			cj.Status.Active = append(cj.Status.Active, refTo(j)) // made just before we, or another term, stopped
		case done && listed(cj, j.UID):
			drop(cj, j.UID)
			c.env.Events.Eventf(reference(cj), v1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", j.Name, how)
		}
		at := j.Status.CompletionTime
		if done && how == batch.JobComplete && at != nil && (cj.Status.LastSuccessfulTime == nil || at.After(cj.Status.LastSuccessfulTime.Time)) {
			cj.Status.LastSuccessfulTime = at
		}
	}
	for _, r := range append([]v1.ObjectReference(nil), cj.Status.Active...) {
		if known[r.UID] {
			continue
		}
		j, err := c.env.Client.BatchV1().Jobs(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && j.UID != r.UID:
			drop(cj, r.UID)
			c.env.Events.Eventf(reference(cj), v1.EventTypeNormal, "MissingJob", "Active job went missing: %v", r.Name)
		case err != nil:
			return err
		}
	}
	return nil
}

func drop(cj *batch.CronJob, uid types.UID) {
	var kept []v1.ObjectReference
	for _, r := range cj.Status.Active {
		if r.UID != uid {
			kept = append(kept, r)
		}
	}
	cj.Status.Active = kept
}

// schedule starts what is due and plans the next look.
func (c *controller) schedule(ctx context.Context, cj *batch.CronJob) error {
	if cj.Spec.Suspend != nil && *cj.Spec.Suspend {
		return nil
	}
	if cj.Spec.TimeZone != nil {
		if _, err := time.LoadLocation(*cj.Spec.TimeZone); err != nil {
			c.env.Events.Eventf(reference(cj), v1.EventTypeWarning, "UnknownTimeZone", "invalid timeZone: %q: %s", *cj.Spec.TimeZone, err)
			return nil
		}
	}
	s, err := parse(cj)
	if err != nil {
		c.env.Events.Eventf(reference(cj), v1.EventTypeWarning, "UnparseableSchedule", "unparseable schedule: %q : %s", cj.Spec.Schedule, err)
		return nil
	}
	now := time.Now()
	v, err := judge(cj, s, now)
	if err != nil {
		c.env.Events.Eventf(reference(cj), v1.EventTypeWarning, "InvalidSchedule", "invalid schedule: %s : %s", cj.Spec.Schedule, err)
		return nil
	}
	if v.event != "" {
		c.env.Events.Event(reference(cj), v.kind, v.event, v.detail)
	}
	if wait := nextStart(cj, s, now); wait > 0 {
		c.loop.AddAfter(workqueue.KeyOf(cj), wait)
	}
	for _, r := range v.end {
		if err := c.end(ctx, cj, r); err != nil {
			return err
		}
	}
	if v.start.IsZero() {
		return nil
	}
	return c.start(ctx, cj, v.start)
}

func (c *controller) end(ctx context.Context, cj *batch.CronJob, r v1.ObjectReference) error {
	if err := c.deleteJob(ctx, cj, r.Namespace, r.Name, r.UID); err != nil {
		return err
	}
	drop(cj, r.UID)
	return nil
}

func (c *controller) deleteJob(ctx context.Context, cj *batch.CronJob, namespace, name string, uid types.UID) error {
	background := metav1.DeletePropagationBackground
	err := c.env.Client.BatchV1().Jobs(namespace).Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: &background, Preconditions: metav1.NewUIDPreconditions(string(uid)),
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		c.env.Events.Eventf(reference(cj), v1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
		return err
	}
	if err == nil {
		c.env.Events.Eventf(reference(cj), v1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", name)
	}
	return nil
}

func (c *controller) start(ctx context.Context, cj *batch.CronJob, at time.Time) error {
	client := c.env.Client.BatchV1().Jobs(cj.Namespace)
	made, err := client.Create(ctx, newJob(cj, at), metav1.CreateOptions{})
	switch {
	case err == nil:
		creationSkew.Observe(time.Since(at).Seconds())
		c.env.Events.Eventf(reference(cj), v1.EventTypeNormal, "SuccessfulCreate", "Created job %v", made.Name)
	case controllerref.NamespaceEnding(err):
		return nil
	case apierrors.IsAlreadyExists(err):
		if made, err = client.Get(ctx, jobName(cj, at), metav1.GetOptions{}); err != nil {
			return err
		}
		if !metav1.IsControlledBy(made, cj) {
			return nil // another controller owns the Job
		}
	default:
		c.env.Events.Eventf(reference(cj), v1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return err
	}
	if _, done := job.Finished(made); !done && !listed(cj, made.UID) {
		cj.Status.Active = append(cj.Status.Active, refTo(made))
	}
	cj.Status.LastScheduleTime = &metav1.Time{Time: at}
	return nil
}

func (c *controller) trim(ctx context.Context, cj *batch.CronJob, jobs []*batch.Job) error {
	gone := surplus(cj, jobs)
	return controllerref.Parallel(len(gone), func(i int) error {
		return c.deleteJob(ctx, cj, gone[i].Namespace, gone[i].Name, gone[i].UID)
	})
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func refTo(j *batch.Job) v1.ObjectReference {
	return v1.ObjectReference{
		APIVersion: batch.SchemeGroupVersion.String(), Kind: "Job", Namespace: j.Namespace, Name: j.Name, UID: j.UID, ResourceVersion: j.ResourceVersion,
	}
}

func reference(cj *batch.CronJob) *v1.ObjectReference {
	return &v1.ObjectReference{
		APIVersion: batch.SchemeGroupVersion.String(), Kind: controllerKind.Kind,
		Namespace: cj.Namespace, Name: cj.Name, UID: cj.UID, ResourceVersion: cj.ResourceVersion,
	}
}
