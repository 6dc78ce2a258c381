// Package ttl deletes Jobs some time after they have ended, where they ask for it.
//
// It watches Jobs and deletes those whose ttlSecondsAfterFinished is up. It writes nothing and touches nothing else.
//
// Goroutines: the workers of one work loop; every deadline is a delayed entry of its queue.
package ttl

import (
	"context"
	"errors"
	"time"

	batch "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	batchlisters "k8s.io/client-go/listers/batch/v1"

	"github.com/balsahq/balsa/leader/job"
	"github.com/balsahq/balsa/leader/workqueue"
)

type controller struct {
	env  workqueue.Env
	jobs batchlisters.JobLister
	loop *workqueue.Loop[workqueue.Key]
}

// New returns the controller that cleans up after Jobs.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	jobs := env.Informers.Batch().V1().Jobs()
	c := &controller{env: env, jobs: jobs.Lister()}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(workqueue.Watch(c.loop, jobs.Informer(), func(_, now *batch.Job) {
		if now != nil && now.Spec.TTLSecondsAfterFinished != nil {
			c.loop.Add(workqueue.KeyOf(now))
		}
	}))
}

// left is how long the Job may stay; ok is false when it may stay for good, or has not ended.
func left(j *batch.Job, now time.Time) (d time.Duration, ok bool) {
	how, done := job.Finished(j)
	if !done || j.Spec.TTLSecondsAfterFinished == nil || j.DeletionTimestamp != nil {
		return 0, false
	}
	for _, c := range j.Status.Conditions {
		if c.Type == how {
			return c.LastTransitionTime.Add(time.Duration(*j.Spec.TTLSecondsAfterFinished) * time.Second).Sub(now), true
		}
	}
	return 0, false
}

func (c *controller) reconcile(ctx context.Context, key workqueue.Key) error {
	j, err := c.jobs.Jobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	wait, ok := left(j, time.Now())
	if !ok {
		return nil
	}
	if wait > 0 {
		c.loop.AddAfter(key, wait)
		return nil
	}
	foreground := metav1.DeletePropagationForeground
	err = c.env.Client.BatchV1().Jobs(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{
		PropagationPolicy: &foreground,
		// The time to live may have been changed since the cache was filled.
		Preconditions: &metav1.Preconditions{UID: &j.UID, ResourceVersion: &j.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
