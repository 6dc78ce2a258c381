package quota

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/kubernetes/pkg/quota/v1/install"
)

// changes is upstream's filter of updates that can change what a namespace uses. It compares the usage before and after,
// and reads the clock for it: the grace period of a deleted pod may be over.
var changes = install.DefaultUpdateFilter()

// frees reports whether a change of a pod can lower what its namespace uses, or move it to another scope.
func frees(old, now *v1.Pod) bool {
	switch {
	case old == nil:
		return false
	case now == nil:
		return true
	}
	return changes(v1.SchemeGroupVersion.WithResource("pods"), old, now) || !equality.Semantic.DeepEqual(old.Spec.Containers, now.Spec.Containers) ||
		old.DeletionTimestamp == nil && now.DeletionTimestamp != nil
}

// claimChanges is the same for a PersistentVolumeClaim: the class of its volume's attributes, which is a scope, and what was
// allocated to it are in its status. Upstream's filter compares pointers here and answers true for every update.
func claimChanges(old, now *v1.PersistentVolumeClaim) bool {
	switch {
	case old == nil:
		return false
	case now == nil:
		return true
	}
	return !equality.Semantic.DeepEqual(old.Spec, now.Spec) ||
		!equality.Semantic.DeepEqual(old.Status.AllocatedResources, now.Status.AllocatedResources) ||
		!equality.Semantic.DeepEqual(old.Status.CurrentVolumeAttributesClassName, now.Status.CurrentVolumeAttributesClassName) ||
		!equality.Semantic.DeepEqual(old.Status.ModifyVolumeStatus, now.Status.ModifyVolumeStatus)
}
