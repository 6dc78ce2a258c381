package podworker

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/staticpod"
)

// statusDelay is how long a change of the status that is not urgent is held back, so that the steps of a start become one
// write.
const statusDelay = 500 * time.Millisecond

// reportStatus compares the status that follows from what was observed with the one in the API, and begins a write when it is
// due. It returns when to look again.
func (w *Worker) reportStatus(ctx context.Context, d podloop.Decision) time.Time {
	s := podloop.PodStatus(podloop.StatusInput{
		Pod: w.pod, Observed: w.observed, Decision: d, HostIPs: w.host.HostIPs, RuntimeName: w.host.RuntimeName, RecursiveReadOnly: w.host.Features(w.handler).GetRecursiveReadOnlyMounts(),
		Health: func(container string) []v1.ResourceStatus {
			return slices.Concat(w.host.Allocator.Health(w.uid, container), w.host.Claims.Health(w.pod, container))
		},
	})
	w.publish(d, s)
	shown := w.podInAPI()
	if shown == nil {
		return w.observed.Now.Add(time.Second) // a static pod whose mirror does not exist yet
	}
	if apiequality.Semantic.DeepEqual(podloop.NormalizeStatus(s), podloop.NormalizeStatus(shown.Status)) || w.observed.Gone {
		w.observed.StatusFresh, w.statusStaleSince = true, time.Time{}
		return time.Time{}
	}
	w.observed.StatusFresh = false
	if w.statusStaleSince.IsZero() {
		w.statusStaleSince = w.observed.Now
	}
	if w.statusWriting {
		return time.Time{}
	}
	due := w.statusStaleSince.Add(statusDelay)
	switch {
	case d.Stopped && w.pod.DeletionTimestamp != nil:
		// The last status is written after the tear-down; then the object can be deleted.
		if w.observed.TornDown {
			due = w.observed.Now
		}
	case d.Stopped, podloop.IsUrgent(&shown.Status, &s):
		due = w.observed.Now
	}
	if w.statusRetry != nil && w.statusRetry.NotBefore.After(due) {
		due = w.statusRetry.NotBefore
	}
	if due.After(w.observed.Now) {
		return due
	}
	w.writeStatus(ctx, shown, s)
	return time.Time{}
}

// podInAPI returns the pod as it is in the API, which is the mirror of a static pod; nil when there is none.
func (w *Worker) podInAPI() *v1.Pod {
	if !staticpod.Is(w.pod) {
		return w.pod
	}
	m, err := w.host.Pods.Pods(w.pod.Namespace).Get(w.pod.Name)
	if err != nil || m.Annotations[staticpod.AnnotationMirror] != w.pod.Annotations[staticpod.AnnotationHash] {
		return nil
	}
	return m
}

// writeStatus patches the status in a goroutine of its own.
func (w *Worker) writeStatus(ctx context.Context, pod *v1.Pod, s v1.PodStatus) {
	patch, err := podloop.StatusPatch(pod, podloop.NormalizeStatus(s))
	if err != nil {
		w.host.Logger.Error("the patch of a pod's status cannot be made; the status in the API stays as it is", "pod", podloop.PodName(pod), "err", err)
		return
	}
	w.statusWriting = true
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		var got *v1.Pod
		err := fault.Contain("node/status", func() (err error) {
			fault.Point("node/status")
			got, err = w.host.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
				metav1.PatchOptions{}, "status")
			return err
		})
		w.mailbox.post(func() { w.statusWritten(pod, got, err) })
	}()
}

func (w *Worker) statusWritten(sent, got *v1.Pod, err error) {
	w.statusWriting = false
	w.statusStaleSince = time.Time{}
	switch {
	case err == nil:
		w.statusRetry = nil
		if got.UID == w.uid {
			w.setPod(got)
		} else if staticpod.Is(w.pod) {
			p := *w.pod
			p.Status = got.Status
			w.pod = &p
		}
	case staticpod.Is(w.pod):
		w.statusRetry = w.statusRetry.Again(time.Now(), podloop.Failure{Reason: "StatusUpdate", Message: err.Error()}, podloop.MinRetry, podloop.MaxRetry)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err) && got == nil && w.nameBelongsToAnother(err):
		w.observed.Gone = true
	default:
		w.statusRetry = w.statusRetry.Again(time.Now(), podloop.Failure{Reason: "StatusUpdate", Message: err.Error()}, podloop.MinRetry, podloop.MaxRetry)
		w.host.Logger.Warn("a pod's status cannot be written; it is tried again", "pod", podloop.PodName(sent), "err", err)
	}
}

// nameBelongsToAnother reports whether another pod has the name now. Then a conflict is final; other conflicts are tried again.
func (w *Worker) nameBelongsToAnother(err error) bool {
	p, getErr := w.host.Pods.Pods(w.pod.Namespace).Get(w.pod.Name)
	return getErr != nil || p.UID != w.uid
}
