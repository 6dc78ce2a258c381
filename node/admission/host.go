package admission

import (
	"fmt"
	"runtime"

	v1 "k8s.io/api/core/v1"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// osLabel refuses a pod whose own label kubernetes.io/os names another system.
func osLabel(in Input) *Refusal {
	if os, ok := in.Pod.Labels[v1.LabelOSStable]; ok && os != runtime.GOOS {
		return &Refusal{"PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	return nil
}

// osField refuses a pod whose spec.os names another system.
func osField(in Input) *Refusal {
	if os := in.Pod.Spec.OS; os != nil && string(os.Name) != runtime.GOOS {
		return &Refusal{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"}
	}
	return nil
}

// supplementalGroups refuses the policy Strict where the runtime would merge the image's groups all the same.
func supplementalGroups(in Input) *Refusal {
	sc := in.Pod.Spec.SecurityContext
	if sc == nil || sc.SupplementalGroupsPolicy == nil || *sc.SupplementalGroupsPolicy != v1.SupplementalGroupsPolicyStrict || in.StrictGroups {
		return nil
	}
	return &Refusal{"SupplementalGroupsPolicyNotSupported",
		fmt.Sprintf("SupplementalGroupsPolicy=%s is not supported in this node", v1.SupplementalGroupsPolicyStrict)}
}

// noExecuteTaints refuses a pod that would be evicted at once. Static pods are the node's own business.
func noExecuteTaints(in Input) *Refusal {
	if in.Static {
		return nil
	}
	onlyNoExecute := func(t *v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }
	if _, found := corev1.FindMatchingUntoleratedTaint(klog.Background(), in.Node.Spec.Taints, in.Pod.Spec.Tolerations, onlyNoExecute, true); found {
		return predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate")
	}
	return nil
}

// appArmor refuses a pod that asks for a profile where none is enforced: it would run unconfined.
func appArmor(in Input) *Refusal {
	if in.AppArmor {
		return nil
	}
	asks := func(p *v1.AppArmorProfile) bool { return p != nil && p.Type != v1.AppArmorProfileTypeUnconfined }
	wanted := in.Pod.Spec.SecurityContext != nil && asks(in.Pod.Spec.SecurityContext.AppArmorProfile)
	podutil.VisitContainers(&in.Pod.Spec, podutil.AllContainers, func(c *v1.Container, _ podutil.ContainerType) bool {
		wanted = wanted || c.SecurityContext != nil && asks(c.SecurityContext.AppArmorProfile)
		return !wanted
	})
	if !wanted {
		return nil
	}
	return &Refusal{"AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"}
}
