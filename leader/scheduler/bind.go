package scheduler

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/rules"
)

// bind writes the binding of an assumed pod.
func (s *Scheduler) bind(ctx context.Context, item *queue.Item, node string) {
	pod := item.Pod.Object
	binding := &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     v1.ObjectReference{Kind: "Node", Name: node},
	}
	began := s.cfg.Clock.Now()
	err := fault.Contain(unit, func() error {
		fault.Point("scheduler/binding")
		return s.cfg.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
	})
	s.stepTook(stepBind, began, err)
	if err != nil {
		s.unplace(ctx, item, fmt.Errorf("binding rejected: %w", err))
		return
	}
	s.attempted(item, resultScheduled)
	s.recorder.Eventf(pod, nil, v1.EventTypeNormal, "Scheduled", "Binding",
		"Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, node)
}

// bindWithVolumes binds the pod's claims and then the pod.
func (s *Scheduler) bindWithVolumes(ctx context.Context, item *queue.Item, node string, plan rules.VolumePlan) {
	defer s.volumes.release(plan)
	began := s.cfg.Clock.Now()
	err := fault.Contain(unit, func() error { return s.bindVolumes(ctx, plan, node) })
	s.stepTook(stepPreBind, began, err)
	if err != nil {
		s.unplace(ctx, item, fmt.Errorf("binding volumes: %w", err))
		return
	}
	s.bind(ctx, item, node)
}

// unplace undoes an assumed placement whose writes failed, and queues the pod again.
func (s *Scheduler) unplace(ctx context.Context, item *queue.Item, cause error) {
	pod := item.Pod.Object
	s.attempted(item, resultError)
	s.cache.Forget(pod.UID)
	s.queue.Happened(queue.Event{Kind: queue.Pod, Action: queue.Delete, Old: pod})
	latest, needed := s.latest(item.Pod)
	if !needed || ctx.Err() != nil {
		return
	}
	s.queue.Return(item, latest)
	if errors.IsNotFound(cause) {
		return
	}
	s.cfg.Logger.Warn("cannot bind a pod, it is tried again after its back-off", "namespace", pod.Namespace, "pod", pod.Name, "err", cause)
	s.report(ctx, refusal{pod: latest.Object, reason: v1.PodReasonSchedulerError, message: cause.Error()})
}
