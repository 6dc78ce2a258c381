package nodes

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// conditionTaints says which taint keeps pods away for which condition.
var conditionTaints = []struct {
	condition v1.NodeConditionType
	status    v1.ConditionStatus
	key       string
}{
	{v1.NodeReady, v1.ConditionFalse, v1.TaintNodeNotReady},
	{v1.NodeReady, v1.ConditionUnknown, v1.TaintNodeUnreachable},
	{v1.NodeMemoryPressure, v1.ConditionTrue, v1.TaintNodeMemoryPressure},
	{v1.NodeDiskPressure, v1.ConditionTrue, v1.TaintNodeDiskPressure},
	{v1.NodePIDPressure, v1.ConditionTrue, v1.TaintNodePIDPressure},
	{v1.NodeNetworkUnavailable, v1.ConditionTrue, v1.TaintNodeNetworkUnavailable},
}

func ownedTaint(t v1.Taint) bool {
	switch t.Effect {
	case v1.TaintEffectNoExecute:
		return t.Key == v1.TaintNodeNotReady || t.Key == v1.TaintNodeUnreachable
	case v1.TaintEffectNoSchedule:
		if t.Key == v1.TaintNodeUnschedulable {
			return true
		}
		for _, c := range conditionTaints {
			if c.key == t.Key {
				return true
			}
		}
	}
	return false
}

func nodeCondition(n *v1.Node, t v1.NodeConditionType) *v1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == t {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// taintsFor returns the node's taints as they should be: our taints by its conditions, all others as they are. evict adds the
// taints that also evict pods; see evictable.
func taintsFor(n *v1.Node, evict bool, now time.Time) (taints []v1.Taint, changed bool) {
	want := map[[2]string]bool{}
	for _, c := range conditionTaints {
		have := nodeCondition(n, c.condition)
		if have == nil || have.Status != c.status {
			continue
		}
		want[[2]string{c.key, string(v1.TaintEffectNoSchedule)}] = true
		if evict && c.condition == v1.NodeReady {
			want[[2]string{c.key, string(v1.TaintEffectNoExecute)}] = true
		}
	}
	if n.Spec.Unschedulable {
		want[[2]string{v1.TaintNodeUnschedulable, string(v1.TaintEffectNoSchedule)}] = true
	}
	for _, t := range n.Spec.Taints {
		id := [2]string{t.Key, string(t.Effect)}
		if ownedTaint(t) && !want[id] {
			changed = true
			continue
		}
		delete(want, id)
		taints = append(taints, t)
	}
	for _, effect := range []v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute} {
		for _, key := range ownedKeys() {
			if want[[2]string{key, string(effect)}] {
				at := metav1.NewTime(now)
				taints = append(taints, v1.Taint{Key: key, Effect: effect, TimeAdded: &at})
				changed = true
			}
		}
	}
	return taints, changed
}

// evictable decides whether pods are driven away from nodes that are not well, of all there are. While none is well
// nothing is gained by it; while most are not, and more than two, the fault is likelier in the network, the power or this
// very server than in each of them, and moving everything would crush what is left. Upstream's controller halts at 55 % of
// a zone and more than two nodes, by default up to 50 nodes (kube-controller-manager's --unhealthy-zone-threshold).
func evictable(total, unwell int) bool {
	return unwell < total && (unwell <= 2 || 2*unwell <= total)
}

func ownedKeys() []string {
	keys := []string{v1.TaintNodeUnschedulable}
	for _, c := range conditionTaints {
		keys = append(keys, c.key)
	}
	return keys
}

// unknownConditions returns the conditions of a node that is silent: unknown, each with the time of the change. It returns nil when they
// are so already.
func unknownConditions(n *v1.Node, now time.Time) []v1.NodeCondition {
	out := append([]v1.NodeCondition(nil), n.Status.Conditions...)
	at := metav1.NewTime(now)
	changed := false
	for _, t := range []v1.NodeConditionType{v1.NodeReady, v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		found := false
		for i := range out {
			if out[i].Type != t {
				continue
			}
			found = true
			if out[i].Status != v1.ConditionUnknown {
				out[i].Status, out[i].Reason, out[i].Message = v1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
				out[i].LastTransitionTime = at
				changed = true
			}
		}
		if !found {
			out = append(out, v1.NodeCondition{
				Type: t, Status: v1.ConditionUnknown, Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
				LastHeartbeatTime: n.CreationTimestamp, LastTransitionTime: at,
			})
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return out
}
