package podworker

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/staticpod"
)

const (
	Unit = "node/pod"
	// minPanicDelay and maxPanicDelay bound the delay before a pod is handled again after a panic.
	minPanicDelay = time.Second
	maxPanicDelay = time.Minute
)

// tryStep does one step, unless the pod waits after a panic. It returns when to look again.
func (w *Worker) tryStep(ctx context.Context) (wake time.Time, done bool) {
	if t := w.observed.PanicRetry; t != nil {
		if time.Now().Before(t.NotBefore) {
			return t.NotBefore, false
		}
		w.rereadPod()
	}
	if err := fault.Do(Unit, func() {
		fault.Point("node/pod")
		wake, done = w.step(ctx)
	}); err != nil {
		w.notePanic(ctx, err)
		return w.observed.PanicRetry.NotBefore, false
	}
	if w.observed.PanicRetry != nil && len(w.ops) == 0 && !done {
		w.observed.PanicRetry = nil // everything has succeeded; the next step removes the condition
		return time.Now(), false
	}
	return wake, done
}

// rereadPod takes the pod from the API's informer: the panic may have interrupted an update.
func (w *Worker) rereadPod() {
	if staticpod.Is(w.pod) {
		return
	}
	switch pod, err := w.host.Pods.Pods(w.pod.Namespace).Get(w.pod.Name); {
	case err == nil && pod.UID == w.uid:
		w.setPod(pod)
	case err == nil || apierrors.IsNotFound(err):
		w.setGone()
	}
}

// notePanic delays the next step of the pod, and records the panic in an event and in the pod's status.
func (w *Worker) notePanic(ctx context.Context, err error) {
	now := time.Now()
	w.observed.Now = now
	w.observed.PanicRetry = w.observed.PanicRetry.Again(now, podloop.Failure{Reason: "Panicked", Message: err.Error()}, minPanicDelay, maxPanicDelay)
	_ = fault.Do(Unit, func() {
		w.event(v1.EventTypeWarning, "Panicked", "the node agent will handle this pod again in "+w.observed.PanicRetry.Delay.String()+": "+err.Error())
		shown := w.podInAPI()
		if shown == nil || w.statusWriting || w.observed.Gone {
			return
		}
		s := *shown.Status.DeepCopy()
		c := podloop.PanickedCondition(podloop.StatusInput{Pod: shown, Observed: w.observed})
		if !podutil.UpdatePodCondition(&s, &c) {
			return
		}
		w.writeStatus(ctx, shown, s)
	})
}
