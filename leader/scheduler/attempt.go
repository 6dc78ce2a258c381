package scheduler

import (
	"context"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/rules"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

// attempt tries to place one pod.
func (s *Scheduler) attempt(ctx context.Context, item *queue.Item) {
	pod, ok := s.latest(item.Pod)
	if !ok {
		s.queue.Done(item)
		return
	}
	item.Pod = pod
	var v verdict
	c := &rules.Cycle{Pod: pod, Snapshot: s.snapshot, Listers: s.listers}
	if !s.contained(ctx, item, func() {
		s.cache.Refresh(s.snapshot)
		d := s.deciders[pod.Object.Spec.SchedulerName]
		d.nominated = s.nominatedFor(pod)
		fault.Point("scheduler/rules")
		began := s.cfg.Clock.Now()
		v = d.decide(c)
		algorithmSeconds.Observe(s.cfg.Clock.Since(began).Seconds())
	}) {
		return
	}
	if v.node == nil {
		s.refuse(ctx, item, c, v)
		return
	}
	s.place(ctx, item, c, v.node)
}

// latest returns the newest version of a pod that still needs a node; false when the pod needs none.
func (s *Scheduler) latest(p *snapshot.Pod) (*snapshot.Pod, bool) {
	live, err := s.pods.Pods(p.Object.Namespace).Get(p.Object.Name)
	if err != nil || live.UID != p.Object.UID || live.Spec.NodeName != "" || live.DeletionTimestamp != nil {
		return nil, false
	}
	if known, _ := s.cache.Known(live.UID); known {
		return nil, false
	}
	if live == p.Object {
		return p, true
	}
	fresh, err := snapshot.NewPod(live)
	if err != nil {
		s.cfg.Logger.Error("cannot read a pod's affinity, the pod is not scheduled", "namespace", live.Namespace, "pod", live.Name, "err", err)
		return nil, false
	}
	return fresh, true
}

// nominatedFor returns a function for the pods that need room on a node beside pod: those nominated there whose priority is not
// lower. It returns nil when no pod is nominated for any node.
func (s *Scheduler) nominatedFor(pod *snapshot.Pod) func(node string) []*snapshot.Pod {
	if s.nominator.Empty() {
		return nil
	}
	return func(node string) []*snapshot.Pod {
		var others []*snapshot.Pod
		for _, p := range s.nominator.On(node) {
			if p.Priority >= pod.Priority && p.Object.UID != pod.Object.UID {
				others = append(others, p)
			}
		}
		return others
	}
}

// place assumes the pod on the node and starts writing its binding.
func (s *Scheduler) place(ctx context.Context, item *queue.Item, c *rules.Cycle, n *snapshot.Node) {
	var plan rules.VolumePlan
	if len(c.Pod.Claims) > 0 {
		ok := false
		if !s.contained(ctx, item, func() {
			fault.Point("scheduler/volumes")
			plan, ok = rules.PlanVolumes(c, n.Object)
		}) {
			return
		}
		if !ok {
			s.queue.Failed(item, c.Pod) // a claim or volume has changed since the search
			return
		}
	}
	node := n.Name()
	if err := s.cache.Assume(c.Pod, node); err != nil {
		s.queue.Done(item)
		return
	}
	s.nominator.Clear(c.Pod.Object.UID)
	s.volumes.reserve(plan)
	p := placement{item: item, node: node, volumes: plan, devices: rules.PlanDevices(c, node)}
	if p.devices != nil {
		s.reserveDevices(p.devices)
	}
	s.queue.Done(item)
	if p.waits() {
		// The wait for a volume or a device takes as long as its driver, so it holds no slot.
		s.writes.Go(fault.Contained(unit, func() { s.bind(ctx, p) }))
		return
	}
	s.write(ctx, func() { s.bind(ctx, p) })
}

// refuse looks for a node on which preemption makes room, puts the pod back into the queue and reports the reason.
func (s *Scheduler) refuse(ctx context.Context, item *queue.Item, c *rules.Cycle, v verdict) {
	pod := c.Pod
	message := v.explain(len(c.Snapshot.Nodes))
	nominated := s.nominator.Node(pod.Object.UID)
	if nominated == "" {
		nominated = pod.Object.Status.NominatedNodeName
	}
	var p preemption
	if d := s.deciders[pod.Object.Spec.SchedulerName]; len(c.Snapshot.Nodes) > 0 && !d.preemption.Off {
		if !s.contained(ctx, item, func() {
			fault.Point("scheduler/preemption")
			began := s.cfg.Clock.Now()
			p = d.preempt(c, v, s.allBudgets(), nominated)
			s.stepTook(pod.Object, stepPostFilter, began, nil)
		}) {
			return
		}
		if p.message != "" {
			message += " " + p.message
		}
	}
	switch {
	case p.eviction != nil:
		nominated = p.eviction.node.Name()
		preemptionAttempts.Inc()
		preemptionVictims.Observe(float64(len(p.eviction.victims)))
	case !p.keep:
		nominated = ""
	}
	s.attempted(item, resultUnschedulable)
	s.nominator.Set(pod, nominated)
	s.queue.Refused(item, pod, v.rules)
	obsolete := rules.Obsolete(c)
	r := refusal{pod: pod.Object, reason: v1.PodReasonUnschedulable, message: message, nominated: nominated}
	var displaced []*v1.Pod
	if p.eviction != nil {
		displaced = s.displaced(pod, nominated)
	}
	s.write(ctx, func() {
		if obsolete != nil {
			s.giveUp(ctx, obsolete)
		}
		if p.eviction != nil {
			s.evict(ctx, pod.Object, p.eviction, nominated, displaced)
		}
		s.report(ctx, r)
	})
}

// displaced removes the nominations for the node of pods with a lower priority, and returns these pods.
func (s *Scheduler) displaced(pod *snapshot.Pod, node string) []*v1.Pod {
	var out []*v1.Pod
	for _, other := range s.nominator.On(node) {
		if other.Priority < pod.Priority {
			s.nominator.Clear(other.Object.UID)
			out = append(out, other.Object)
		}
	}
	return out
}

func (s *Scheduler) allBudgets() []*policyv1.PodDisruptionBudget {
	budgets, err := s.budgets.List(labels.Everything())
	if err != nil {
		return nil
	}
	return budgets
}
