package rules

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

var refusedTaint = forbid("node(s) had untolerated taint(s)")

// Taints refuses nodes with a NoSchedule or NoExecute taint that the pod does not tolerate.
var Taints = Filter{
	Name: "TaintToleration",
	Prepare: func(c *Cycle) (Check, *Refusal) {
		tolerations := c.Pod.Object.Spec.Tolerations
		return CheckFunc(func(n *snapshot.Node) *Refusal {
			if tolerates(tolerations, n.Object.Spec.Taints) {
				return nil
			}
			return refusedTaint
		}), nil
	},
	Undo: []queue.Hint{{Kind: queue.Node, Action: queue.Add | queue.Update, Helps: func(p *v1.Pod, e queue.Event) bool {
		n, old := nodeOf(e.New), nodeOf(e.Old)
		return n != nil && tolerates(p.Spec.Tolerations, n.Spec.Taints) &&
			(old == nil || !tolerates(p.Spec.Tolerations, old.Spec.Taints))
	}}},
}

// tolerates reports whether the tolerations cover every taint that keeps pods from being scheduled.
func tolerates(tolerations []v1.Toleration, taints []v1.Taint) bool {
	for i := range taints {
		if taints[i].Effect == v1.TaintEffectPreferNoSchedule {
			continue
		}
		if !corev1.TolerationsTolerateTaint(klog.Background(), tolerations, &taints[i], true) {
			return false
		}
	}
	return true
}

// PreferredTaints prefers nodes with fewer PreferNoSchedule taints that the pod does not tolerate.
var PreferredTaints = Score{
	Name:   "TaintToleration",
	Weight: 3,
	Prepare: func(c *Cycle, candidates []*snapshot.Node) Scorer {
		if !slices.ContainsFunc(candidates, func(n *snapshot.Node) bool { return len(n.Object.Spec.Taints) > 0 }) {
			return nil
		}
		var tolerations []v1.Toleration
		for _, t := range c.Pod.Object.Spec.Tolerations {
			if t.Effect == "" || t.Effect == v1.TaintEffectPreferNoSchedule {
				tolerations = append(tolerations, t)
			}
		}
		return relative{reversed: true, raw: func(n *snapshot.Node) int64 {
			var count int64
			for i := range n.Object.Spec.Taints {
				t := &n.Object.Spec.Taints[i]
				if t.Effect == v1.TaintEffectPreferNoSchedule &&
					!corev1.TolerationsTolerateTaint(klog.Background(), tolerations, t, true) {
					count++
				}
			}
			return count
		}}
	},
}
