package scheduler

import (
	"context"
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// noteLimit is the greatest length of an event's note (events.k8s.io/v1).
const noteLimit = 1024

// refusal is the report on a pod that fits no node.
type refusal struct {
	pod             *v1.Pod
	reason, message string
	nominated       string
}

// report writes the event and, if the condition or the nomination changes, the pod's status.
func (s *Scheduler) report(ctx context.Context, r refusal) {
	s.recorder(r.pod).Eventf(r.pod, nil, v1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", shorten(r.message))
	condition := v1.PodCondition{
		Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: r.reason, Message: r.message,
		ObservedGeneration: r.pod.Generation,
	}
	if !s.stamp(r.pod, &condition) && r.nominated == r.pod.Status.NominatedNodeName {
		return
	}
	if err := s.patchStatus(ctx, r.pod, &condition, &r.nominated); err != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn("cannot write a pod's condition, its next attempt writes it", "namespace", r.pod.Namespace, "pod", r.pod.Name, "err", err)
	}
}

func shorten(message string) string {
	const more = " ..."
	if len(message) <= noteLimit {
		return message
	}
	return message[:noteLimit-len(more)] + more
}

// stamp sets the time of the condition's last transition. It reports whether the condition differs from the pod's.
func (s *Scheduler) stamp(pod *v1.Pod, condition *v1.PodCondition) bool {
	condition.LastTransitionTime = metav1.NewTime(s.cfg.Clock.Now())
	for i := range pod.Status.Conditions {
		old := &pod.Status.Conditions[i]
		if old.Type != condition.Type {
			continue
		}
		if old.Status == condition.Status {
			condition.LastTransitionTime = old.LastTransitionTime
		}
		return old.Status != condition.Status || old.Reason != condition.Reason || old.Message != condition.Message ||
			old.ObservedGeneration != condition.ObservedGeneration
	}
	return true
}

// patchStatus merges one condition and, unless nil, the nominated node ("" removes it) into a pod's status. It is no error if the pod is
// gone.
func (s *Scheduler) patchStatus(ctx context.Context, pod *v1.Pod, condition *v1.PodCondition, nominated *string) error {
	status := map[string]any{}
	if condition != nil {
		status["conditions"] = []any{condition}
	}
	if nominated != nil && *nominated != pod.Status.NominatedNodeName {
		status["nominatedNodeName"] = nil
		if *nominated != "" {
			status["nominatedNodeName"] = *nominated
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = s.cfg.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if errors.IsNotFound(err) {
		return nil
	}
	return err
}
