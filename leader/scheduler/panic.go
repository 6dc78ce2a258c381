package scheduler

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/leader/scheduler/queue"
)

// unit is the unit under which panics of the scheduler are counted.
const unit = "scheduler"

// contained runs a part of an attempt. After a panic it puts the pod back, to be tried again after its back-off, writes the panic into
// the pod's status and returns false: the attempt is over.
func (s *Scheduler) contained(ctx context.Context, item *queue.Item, work func()) bool {
	err := fault.Do(unit, work)
	if err == nil {
		return true
	}
	s.snapshot = s.cache.Anew() // the panic may have left the old snapshot half changed
	s.attempted(item, resultError)
	s.queue.Failed(item, item.Pod)
	r := refusal{pod: item.Pod.Object, reason: v1.PodReasonSchedulerError, message: err.Error(), nominated: item.Pod.Object.Status.NominatedNodeName}
	s.write(ctx, func() { s.report(ctx, r) })
	return false
}
