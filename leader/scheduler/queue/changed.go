package queue

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// changed reports whether an update of a pod without a node may make it schedulable. Fields that the scheduler itself writes (conditions,
// the nominated node) do not count: otherwise each refusal would cause the next attempt.
func changed(before, after *v1.Pod) bool {
	return before.Generation != after.Generation ||
		!equality.Semantic.DeepEqual(before.Labels, after.Labels) ||
		!equality.Semantic.DeepEqual(before.Spec, after.Spec) ||
		!equality.Semantic.DeepEqual(before.Status.ResourceClaimStatuses, after.Status.ResourceClaimStatuses)
}

// held reports whether the pod cannot be scheduled yet, whatever the cluster offers: it has gates, or claims are to be made for it.
func held(p *v1.Pod) bool {
	if len(p.Spec.SchedulingGates) > 0 {
		return true
	}
	for i := range p.Spec.ResourceClaims {
		entry := &p.Spec.ResourceClaims[i]
		made := slices.ContainsFunc(p.Status.ResourceClaimStatuses, func(s v1.PodResourceClaimStatus) bool { return s.Name == entry.Name })
		if entry.ResourceClaimTemplateName != nil && !made {
			return true
		}
	}
	return false
}
