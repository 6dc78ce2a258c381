package node

import (
	"context"
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

// statusDelay is how long a change that nobody waits for is held back, so that
// the steps of a start become one write.
const statusDelay = 500 * time.Millisecond

// report compares the status that follows from what is known with what the API
// has, and starts a write when it is due. It returns when to look again.
func (w *worker) report(ctx context.Context, d podloop.Decision) time.Time {
	s := podloop.PodStatus(podloop.StatusInput{
		Pod: w.pod, Observed: w.o, Decision: d, HostIPs: w.host.HostIPs, RuntimeName: w.host.RuntimeName, RecursiveReadOnly: w.host.Features(w.handler).GetRecursiveReadOnlyMounts(),
	})
	w.publish(d, s)
	shown := w.shown()
	if shown == nil {
		return w.o.Now.Add(time.Second) // the mirror of a static pod is not there yet
	}
	if apiequality.Semantic.DeepEqual(podloop.NormalizeStatus(s), podloop.NormalizeStatus(shown.Status)) || w.o.Gone {
		w.o.StatusFresh, w.dirty = true, time.Time{}
		return time.Time{}
	}
	w.o.StatusFresh = false
	if w.dirty.IsZero() {
		w.dirty = w.o.Now
	}
	if w.writing {
		return time.Time{}
	}
	due := w.dirty.Add(statusDelay)
	switch {
	case d.Stopped && w.pod.DeletionTimestamp != nil:
		// The last status is written once everything is torn down; then the pod can go.
		if w.o.TornDown {
			due = w.o.Now
		}
	case d.Stopped, podloop.IsUrgent(&shown.Status, &s):
		due = w.o.Now
	}
	if w.writeErr != nil && w.writeErr.NotBefore.After(due) {
		due = w.writeErr.NotBefore
	}
	if due.After(w.o.Now) {
		return due
	}
	w.write(ctx, shown, s)
	return time.Time{}
}

// shown is the pod as the API has it: of a static pod, its mirror; nil when
// there is none.
func (w *worker) shown() *v1.Pod {
	if !staticpod.Is(w.pod) {
		return w.pod
	}
	m, err := w.host.Pods.Pods(w.pod.Namespace).Get(w.pod.Name)
	if err != nil || m.Annotations[staticpod.AnnotationMirror] != w.pod.Annotations[staticpod.AnnotationHash] {
		return nil
	}
	return m
}

// write patches the status; the worker's goroutine goes on meanwhile.
func (w *worker) write(ctx context.Context, pod *v1.Pod, s v1.PodStatus) {
	patch, err := podloop.StatusPatch(pod, podloop.NormalizeStatus(s))
	if err != nil {
		w.host.Logger.Error("status patch", "pod", podloop.PodName(pod), "err", err)
		return
	}
	w.writing = true
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
		w.mailbox.post(func() { w.written(pod, got, err) })
	}()
}

func (w *worker) written(sent, got *v1.Pod, err error) {
	w.writing = false
	w.dirty = time.Time{}
	switch {
	case err == nil:
		w.writeErr = nil
		if got.UID == w.uid {
			w.setPod(got)
		} else if staticpod.Is(w.pod) {
			p := *w.pod
			p.Status = got.Status
			w.pod = &p
		}
	case staticpod.Is(w.pod):
		w.writeErr = w.writeErr.Again(time.Now(), podloop.Failure{Reason: "StatusUpdate", Message: err.Error()}, podloop.MinRetry, podloop.MaxRetry)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err) && got == nil && w.otherUID(err):
		w.o.Gone = true
	default:
		w.writeErr = w.writeErr.Again(time.Now(), podloop.Failure{Reason: "StatusUpdate", Message: err.Error()}, podloop.MinRetry, podloop.MaxRetry)
		w.host.Logger.Warn("pod status not written", "pod", podloop.PodName(sent), "err", err)
	}
}

// otherUID reports whether the conflict says that the name belongs to another
// pod now; other conflicts are tried again.
func (w *worker) otherUID(err error) bool {
	p, getErr := w.host.Pods.Pods(w.pod.Namespace).Get(w.pod.Name)
	return getErr != nil || p.UID != w.uid
}
