package queue

import (
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
