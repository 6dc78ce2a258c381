package rules

import (
	v1 "k8s.io/api/core/v1"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

var refusedUnschedulable = forbid("node(s) were unschedulable")

// Unschedulable refuses cordoned nodes, unless the pod tolerates the taint of cordoned nodes.
var Unschedulable = Filter{
	Name: "NodeUnschedulable",
	Prepare: func(c *Cycle) (Check, *Refusal) {
		taint := v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}
		if corev1.TolerationsTolerateTaint(klog.Background(), c.Pod.Object.Spec.Tolerations, &taint, true) {
			return nil, nil
		}
		return CheckFunc(func(n *snapshot.Node) *Refusal {
			if n.Object.Spec.Unschedulable {
				return refusedUnschedulable
			}
			return nil
		}), nil
	},
	Undo: []queue.Hint{{Kind: queue.Node, Action: queue.Add | queue.Update, Helps: func(_ *v1.Pod, e queue.Event) bool {
		n, old := nodeOf(e.New), nodeOf(e.Old)
		return n != nil && !n.Spec.Unschedulable && (old == nil || old.Spec.Unschedulable)
	}}},
}
