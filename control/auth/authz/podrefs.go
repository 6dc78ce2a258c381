package authz

import (
	corev1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// podRefs returns the objects that a pod's node has to read to run it. Mirror pods give access to nothing, because
// nodes create them.
func podRefs(pod *corev1.Pod) map[ref]bool {
	refs := map[ref]bool{}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror || pod.Spec.NodeName == "" {
		return refs
	}
	add := func(kind, name string) {
		if name != "" {
			refs[ref{kind, name}] = true
		}
	}
	add(refAccount, pod.Spec.ServiceAccountName)
	podutil.VisitPodSecretNames(pod, func(name string) bool { add(refSecret, name); return true })
	podutil.VisitPodConfigmapNames(pod, func(name string) bool { add(refConfigMap, name); return true })
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			add(refClaim, v.PersistentVolumeClaim.ClaimName)
		} else if v.Ephemeral != nil {
			add(refClaim, pod.Name+"-"+v.Name)
		}
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			add(refResource, *s.ResourceClaimName)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		add(refResource, s.ResourceClaimName)
	}
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			add(refResource, *c.ResourceClaimName)
		}
	}
	return refs
}
