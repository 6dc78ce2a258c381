package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/balsahq/balsa/fault"
)

// statusDelay is how long a change that nobody waits for is held back, so that
// the steps of a start become one write.
const statusDelay = 500 * time.Millisecond

const (
	firstRetry = 100 * time.Millisecond
	mostRetry  = 10 * time.Second
)

// report compares the status that follows from what is known with what the API
// has, and starts a write when it is due. It returns when to look again.
func (w *worker) report(ctx context.Context, d decision) time.Time {
	s := podStatus(statusInput{
		Pod: w.pod, O: w.o, D: d, HostIPs: w.a.hostIPs, RuntimeName: w.a.runtimeName, RRO: w.a.rro(w.handler),
	})
	w.publish(d, s)
	shown := w.shown()
	if shown == nil {
		return w.o.Now.Add(time.Second) // the mirror of a static pod is not there yet
	}
	if apiequality.Semantic.DeepEqual(normalized(s), normalized(shown.Status)) || w.o.Gone {
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
	case d.Stopped, urgent(&shown.Status, &s):
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
	if !isStatic(w.pod) {
		return w.pod
	}
	m, err := w.a.pods.Pods(w.pod.Namespace).Get(w.pod.Name)
	if err != nil || m.Annotations[annMirror] != w.pod.Annotations[annHashOf] {
		return nil
	}
	return m
}

// normalized drops what the wire does not keep.
func normalized(s v1.PodStatus) v1.PodStatus {
	c := s.DeepCopy()
	trim := func(t *metav1.Time) { *t = t.Rfc3339Copy() }
	for i := range c.Conditions {
		trim(&c.Conditions[i].LastTransitionTime)
		trim(&c.Conditions[i].LastProbeTime)
	}
	if c.StartTime != nil {
		trim(c.StartTime)
	}
	for _, sts := range [][]v1.ContainerStatus{c.InitContainerStatuses, c.ContainerStatuses, c.EphemeralContainerStatuses} {
		for i := range sts {
			for _, st := range []*v1.ContainerState{&sts[i].State, &sts[i].LastTerminationState} {
				if st.Running != nil {
					trim(&st.Running.StartedAt)
				}
				if st.Terminated != nil {
					trim(&st.Terminated.StartedAt)
					trim(&st.Terminated.FinishedAt)
				}
			}
		}
	}
	return *c
}

// urgent reports whether somebody waits for the change.
func urgent(old, s *v1.PodStatus) bool {
	if old.Phase != s.Phase {
		return true
	}
	ready := func(s *v1.PodStatus) v1.ConditionStatus {
		_, c := podutil.GetPodConditionFromList(s.Conditions, v1.PodReady)
		if c == nil {
			return v1.ConditionFalse
		}
		return c.Status
	}
	return ready(old) != ready(s)
}

// write patches the status; the worker's goroutine goes on meanwhile.
func (w *worker) write(ctx context.Context, pod *v1.Pod, s v1.PodStatus) {
	patch, err := statusPatch(pod, normalized(s))
	if err != nil {
		w.a.log.Error("status patch", "pod", podName(pod), "err", err)
		return
	}
	w.writing = true
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		var got *v1.Pod
		err := fault.Contain("node/status", func() (err error) {
			fault.Point("node/status")
			got, err = w.a.cfg.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
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
		} else if isStatic(w.pod) {
			p := *w.pod
			p.Status = got.Status
			w.pod = &p
		}
	case isStatic(w.pod):
		w.writeErr = w.writeErr.again(time.Now(), failure{"StatusUpdate", err.Error()}, firstRetry, mostRetry)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err) && got == nil && w.otherUID(err):
		w.o.Gone = true
	default:
		w.writeErr = w.writeErr.again(time.Now(), failure{"StatusUpdate", err.Error()}, firstRetry, mostRetry)
		w.a.log.Warn("pod status not written", "pod", podName(sent), "err", err)
	}
}

// otherUID reports whether the conflict says that the name belongs to another
// pod now; other conflicts are tried again.
func (w *worker) otherUID(err error) bool {
	p, getErr := w.a.pods.Pods(w.pod.Namespace).Get(w.pod.Name)
	return getErr != nil || p.UID != w.uid
}

// statusPatch is the difference from what the API has, bound to the pod's UID.
func statusPatch(pod *v1.Pod, s v1.PodStatus) ([]byte, error) {
	before, err := json.Marshal(v1.Pod{Status: pod.Status})
	if err != nil {
		return nil, err
	}
	after, err := json.Marshal(v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Status: s})
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, v1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("difference of pod status: %w", err)
	}
	return patch, nil
}

// newer reports whether b is a later version of the object than a.
func newer(a, b *v1.Pod) bool {
	x, err1 := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, err2 := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return err1 != nil || err2 != nil || y >= x
}
