package scheduler

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/leader/scheduler/queue"
)

// evict deletes the victims of a preemption and removes displaced nominations from pods' statuses.
func (s *Scheduler) evict(ctx context.Context, preemptor *v1.Pod, e *eviction, node string, displaced []*v1.Pod) {
	for _, victim := range e.victims {
		if err := s.evictOne(ctx, preemptor, victim.Object, node); err != nil {
			if ctx.Err() != nil {
				return
			}
			s.cfg.Logger.Warn("cannot evict a pod with a lower priority, the preemption is given up", "namespace", victim.Object.Namespace, "pod", victim.Object.Name, "err", err)
			s.nominator.Clear(preemptor.UID)
			s.queue.Happened(queue.Event{Kind: queue.Pod, Action: queue.Delete, Old: victim.Object})
			return
		}
	}
	none := ""
	for _, pod := range displaced {
		if err := s.patchStatus(ctx, pod, nil, &none); err != nil && ctx.Err() == nil {
			s.cfg.Logger.Warn("cannot remove a pod's nominated node, its next attempt writes it", "namespace", pod.Namespace, "pod", pod.Name, "err", err)
		}
	}
}

func (s *Scheduler) evictOne(ctx context.Context, preemptor, victim *v1.Pod, node string) error {
	condition := v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler,
		Message:            fmt.Sprintf("%s: preempting to accommodate a higher priority pod", preemptor.Spec.SchedulerName),
		ObservedGeneration: victim.Generation,
	}
	if s.stamp(victim, &condition) {
		if err := s.patchStatus(ctx, victim, &condition, nil); err != nil {
			return err
		}
	}
	uid := victim.UID
	err := s.cfg.Client.CoreV1().Pods(victim.Namespace).Delete(ctx, victim.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid},
	})
	if errors.IsNotFound(err) || errors.IsConflict(err) {
		return nil // the pod is gone, or was replaced by another with its name
	}
	if err != nil {
		return err
	}
	s.recorder(preemptor).Eventf(victim, preemptor, v1.EventTypeNormal, "Preempted", "Preempting",
		"Preempted by pod %v on node %v", preemptor.UID, node)
	return nil
}
