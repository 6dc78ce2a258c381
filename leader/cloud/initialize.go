package cloud

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// Taints of k8s.io/cloud-provider/api.
const (
	// TaintUninitialized is the taint with which a node registers that waits for its provider.
	TaintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
	// TaintOff keeps pods from a node whose machine is switched off.
	TaintOff = "node.cloudprovider.kubernetes.io/shutdown"
)

func hasTaint(n *v1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == key })
}

func uninitialized(n *v1.Node) bool { return hasTaint(n, TaintUninitialized) }

func condition(n *v1.Node, kind v1.NodeConditionType) *v1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == kind {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// inDoubt reports whether a node that was ready no longer reports its status: its machine may be off or gone. A node that
// itself reports that it is not ready has a running machine.
func inDoubt(n *v1.Node) bool {
	c := condition(n, v1.NodeReady)
	return c != nil && c.Status == v1.ConditionUnknown
}

// addressed returns the node with its machine's addresses, or nil if it has them already.
func addressed(n *v1.Node, m Instance) *v1.Node {
	if len(m.Addresses) == 0 || apiequality.Semantic.DeepEqual(n.Status.Addresses, m.Addresses) {
		return nil
	}
	want := n.DeepCopy()
	want.Status.Addresses = slices.Clone(m.Addresses)
	return want
}

// initialize sets the fields of the node that describe its machine, and removes the taint.
func initialize(n *v1.Node, m Instance) {
	if n.Spec.ProviderID == "" { // validation does not allow to change it
		n.Spec.ProviderID = m.ProviderID
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	maps.Copy(n.Labels, m.Labels)
	for key, value := range map[string]string{v1.LabelInstanceTypeStable: m.Type, v1.LabelTopologyZone: m.Zone, v1.LabelTopologyRegion: m.Region} {
		if value != "" {
			n.Labels[key] = value
		}
	}
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == TaintUninitialized })
}

// switched returns the node with TaintOff added or removed, or nil if nothing changes.
func switched(n *v1.Node, off bool) *v1.Node {
	if off == hasTaint(n, TaintOff) {
		return nil
	}
	want := n.DeepCopy()
	if off {
		want.Spec.Taints = append(want.Spec.Taints, v1.Taint{Key: TaintOff, Effect: v1.TaintEffectNoSchedule})
	} else {
		want.Spec.Taints = slices.DeleteFunc(want.Spec.Taints, func(t v1.Taint) bool { return t.Key == TaintOff })
	}
	return want
}
