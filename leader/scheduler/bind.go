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

// placement is what the writes for one assumed pod need.
type placement struct {
	item    *queue.Item
	node    string
	volumes rules.VolumePlan
	devices *rules.DevicePlan // nil: the pod has no claims of devices
}

// waits reports whether a write must wait for a provisioner or a device, for as long as that takes.
func (p *placement) waits() bool {
	return !p.volumes.Empty() || p.devices != nil && p.devices.Waits()
}

// bind binds the pod's volumes and devices, and then the pod. If a part fails, it reverts its writes.
func (s *Scheduler) bind(ctx context.Context, p placement) {
	defer s.volumes.release(p.volumes)
	if !p.volumes.Empty() {
		began := s.cfg.Clock.Now()
		err := fault.Contain(unit, func() error { return s.bindVolumes(ctx, p.volumes, p.node) })
		s.stepTook(p.item.Pod.Object, stepPreBind, began, err)
		if err != nil {
			s.releaseDevices(p)
			s.unplace(ctx, p.item, fmt.Errorf("binding volumes: %w", err))
			return
		}
	}
	if p.devices == nil {
		if err := s.bindPod(ctx, p); err != nil {
			s.unplace(ctx, p.item, err)
		}
		return
	}
	b := &deviceBinding{Scheduler: s, pod: p.item.Pod.Object, node: p.node, plan: p.devices}
	began := s.cfg.Clock.Now()
	err := fault.Contain(unit, func() error { return b.bind(ctx) })
	s.stepTook(p.item.Pod.Object, stepPreBind, began, err)
	if err != nil {
		err = fmt.Errorf("binding devices: %w", err)
	} else {
		err = s.bindPod(ctx, p)
	}
	if err != nil {
		b.undo(ctx)
		s.unplace(ctx, p.item, err)
		return
	}
	b.awaitShown(ctx)
}

// releaseDevices gives up devices that were reserved in memory only.
func (s *Scheduler) releaseDevices(p placement) {
	if p.devices != nil {
		(&deviceBinding{Scheduler: s, pod: p.item.Pod.Object, plan: p.devices}).release()
	}
}

// bindPod writes the binding of an assumed pod.
func (s *Scheduler) bindPod(ctx context.Context, p placement) error {
	pod := p.item.Pod.Object
	binding := &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     v1.ObjectReference{Kind: "Node", Name: p.node},
	}
	began := s.cfg.Clock.Now()
	err := fault.Contain(unit, func() error {
		fault.Point("scheduler/binding")
		return s.cfg.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
	})
	s.stepTook(pod, stepBind, began, err)
	if err != nil {
		return fmt.Errorf("binding rejected: %w", err)
	}
	s.attempted(p.item, resultScheduled)
	s.recorder(pod).Eventf(pod, nil, v1.EventTypeNormal, "Scheduled", "Binding",
		"Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, p.node)
	return nil
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
