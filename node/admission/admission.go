package admission

import (
	v1 "k8s.io/api/core/v1"
)

// Input is what the decision looks at.
type Input struct {
	Pod *v1.Pod
	// Others are the pods that this node runs.
	Others []*v1.Pod
	Node   *v1.Node
	// Static says that the pod comes from a file of this node.
	Static bool
	// Sysctls are those a pod may set; nil allows none.
	Sysctls *Sysctls
	// StrictGroups says that the container runtime can keep the groups of an image's user out.
	StrictGroups bool
	// AllocatedLater says that a resource is not counted by the Node's figures, because it is allocated one by one before the
	// pod starts. It may be nil.
	AllocatedLater func(v1.ResourceName) bool
	// AppArmor says that the kernel enforces AppArmor profiles.
	AppArmor bool
	// Pressure lists the conditions of the node that are true because it runs short of something.
	Pressure []v1.NodeConditionType
	// ShuttingDown says that the machine is about to go down.
	ShuttingDown bool
}

// Refusal is why a pod may not run here, as its status says it.
type Refusal struct{ Reason, Message string }

type rule = func(Input) *Refusal

// rules are asked in this order; the first refusal counts.
var rules = []rule{
	shuttingDown, pressure, sysctls, osLabel, osField, supplementalGroups, room, nodeAffinity, freePorts, noExecuteTaints, appArmor,
}

// Check returns why the pod may not run on the node, nil when it may.
func Check(in Input) *Refusal { return check(rules, in) }

func check(rules []rule, in Input) *Refusal {
	for _, allows := range rules {
		if r := allows(in); r != nil {
			return r
		}
	}
	return nil
}

func predicate(name, why string) *Refusal {
	return &Refusal{name, "Predicate " + name + " failed: " + why}
}
