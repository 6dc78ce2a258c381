package node

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
	unitPod = "node/pod"
	// firstHold and mostHold bound how long a pod is left alone after a panic.
	firstHold = time.Second
	mostHold  = time.Minute
)

// attempt is one step, unless the pod is left alone after a panic. It returns when to look again.
func (w *worker) attempt(ctx context.Context) (wake time.Time, done bool) {
	if t := w.o.PanicRetry; t != nil {
		if time.Now().Before(t.NotBefore) {
			return t.NotBefore, false
		}
		w.reread()
	}
	if err := fault.Do(unitPod, func() {
		fault.Point("node/pod")
		wake, done = w.step(ctx)
	}); err != nil {
		w.panicked(ctx, err)
		return w.o.PanicRetry.NotBefore, false
	}
	if w.o.PanicRetry != nil && len(w.ops) == 0 && !done {
		w.o.PanicRetry = nil // everything went well again; the next step says so
		return time.Now(), false
	}
	return wake, done
}

// reread takes in the pod as the API has it: what a panic interrupted may have been this.
func (w *worker) reread() {
	if staticpod.Is(w.pod) {
		return
	}
	switch pod, err := w.host.Pods.Pods(w.pod.Namespace).Get(w.pod.Name); {
	case err == nil && pod.UID == w.uid:
		w.setPod(pod)
	case err == nil || apierrors.IsNotFound(err):
		w.gone()
	}
}

// panicked leaves the pod alone for a while and says so, in an event and in the pod's status.
func (w *worker) panicked(ctx context.Context, err error) {
	now := time.Now()
	w.o.Now = now
	w.o.PanicRetry = w.o.PanicRetry.Again(now, podloop.Failure{Reason: "Panicked", Message: err.Error()}, firstHold, mostHold)
	_ = fault.Do(unitPod, func() {
		w.event(v1.EventTypeWarning, "Panicked", "the node agent will handle this pod again in "+w.o.PanicRetry.Delay.String()+": "+err.Error())
		shown := w.shown()
		if shown == nil || w.writing || w.o.Gone {
			return
		}
		s := *shown.Status.DeepCopy()
		c := podloop.PanickedCondition(podloop.StatusInput{Pod: shown, Observed: w.o})
		if !podutil.UpdatePodCondition(&s, &c) {
			return
		}
		w.write(ctx, shown, s)
	})
}
