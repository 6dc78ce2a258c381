package endpoints

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	sliceutil "k8s.io/endpointslice/util"

	"github.com/balsahq/balsa/leader/controllerref"
	"github.com/balsahq/balsa/leader/workqueue"
)

type controller struct {
	env       workqueue.Env
	services  corelisters.ServiceLister
	pods      corelisters.PodLister
	endpoints corelisters.EndpointsLister
	triggers  *sliceutil.TriggerTimeTracker
	ended     sync.Map // keys of Services seen to go, until their Endpoints are gone too
	loop      *workqueue.Loop[workqueue.Key]
}

// New returns the controller of Endpoints.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	core := env.Informers.Core().V1()
	c := &controller{
		env: env, services: core.Services().Lister(), pods: core.Pods().Lister(), endpoints: core.Endpoints().Lister(),
		triggers: sliceutil.NewTriggerTimeTracker(),
	}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		workqueue.Watch(c.loop, core.Services().Informer(), func(old, now *v1.Service) {
			if now == nil {
				c.ended.Store(workqueue.KeyOf(old), true)
			}
			c.loop.Add(workqueue.KeyOf(workqueue.Newest(old, now)))
		}),
		workqueue.Watch(c.loop, core.Pods().Informer(), func(old, now *v1.Pod) {
			for _, k := range touched(c.services, old, now) {
				c.loop.Add(k)
			}
		}),
		workqueue.Watch(c.loop, core.Endpoints().Informer(), func(old, now *v1.Endpoints) {
			if old == nil || now == nil || old.ResourceVersion != now.ResourceVersion {
				c.loop.Add(workqueue.KeyOf(workqueue.Newest(old, now)))
			}
		}),
	)
}

func (c *controller) reconcile(ctx context.Context, key workqueue.Key) error {
	have, err := c.endpoints.Endpoints(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		have = nil
	} else if err != nil {
		return err
	}
	s, err := c.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.triggers.DeleteService(key.Namespace, key.Name)
		return c.drop(ctx, key, have)
	}
	c.ended.Delete(key)
	if err != nil || !served(s) {
		return err
	}
	candidates, err := c.pods.Pods(key.Namespace).List(labels.SelectorFromSet(s.Spec.Selector))
	if err != nil {
		return err
	}
	changed := c.triggers.ComputeEndpointLastChangeTriggerTime(key.Namespace, s, candidates)
	want := desired(s, candidates, have)
	if want == nil {
		return nil
	}
	stamp(want, changed)
	return c.write(ctx, want)
}

// drop deletes the Endpoints of a Service that is gone: those that this controller made always, others if the Service's deletion
// was seen. Endpoints that never had a Service stay.
func (c *controller) drop(ctx context.Context, key workqueue.Key, have *v1.Endpoints) error {
	_, ended := c.ended.Load(key)
	if have == nil || !ended && have.Labels[labelManagedBy] != managedBy {
		c.ended.Delete(key)
		return nil
	}
	err := c.env.Client.CoreV1().Endpoints(have.Namespace).Delete(ctx, have.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(have.UID))})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func stamp(e *v1.Endpoints, changed time.Time) {
	if changed.IsZero() {
		delete(e.Annotations, v1.EndpointsLastChangeTriggerTime)
		return
	}
	if e.Annotations == nil {
		e.Annotations = map[string]string{}
	}
	e.Annotations[v1.EndpointsLastChangeTriggerTime] = changed.UTC().Format(time.RFC3339Nano)
}

func (c *controller) write(ctx context.Context, e *v1.Endpoints) error {
	client := c.env.Client.CoreV1().Endpoints(e.Namespace)
	reason, err := "FailedToUpdateEndpoint", error(nil)
	if e.ResourceVersion == "" {
		reason = "FailedToCreateEndpoint"
		_, err = client.Create(ctx, e, metav1.CreateOptions{})
	} else {
		_, err = client.Update(ctx, e, metav1.UpdateOptions{})
	}
	switch {
	case err == nil, controllerref.NamespaceEnding(err):
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), ctx.Err() != nil:
		return err
	}
	c.env.Events.Eventf(&v1.ObjectReference{APIVersion: "v1", Kind: "Endpoints", Namespace: e.Namespace, Name: e.Name, UID: e.UID},
		v1.EventTypeWarning, reason, "Failed to write endpoints of service %s/%s: %v", e.Namespace, e.Name, err)
	return err
}
