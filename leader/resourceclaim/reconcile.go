package resourceclaim

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// longestBase is how long a generated name may be without its random end.
const longestBase = 57

// claimFor is the claim of a pod made from a template. Its name begins with the pod's.
func claimFor(pod *v1.Pod, podClaim string, template *resourceapi.ResourceClaimTemplate) *resourceapi.ResourceClaim {
	from := template.DeepCopy().Spec
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, GenerateName: baseName(pod.Name, podClaim), Labels: from.Labels, Annotations: from.Annotations,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true)}},
		},
		Spec: from.Spec,
	}
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, resourceapi.PodResourceClaimAnnotation, podClaim)
	return claim
}

// baseName is what the API server completes to a name. Both parts of one that is too long are shortened alike.
func baseName(pod, podClaim string) string {
	base := pod + "-" + podClaim + "-"
	if n := len(base); n > longestBase {
		base = pod[:len(pod)*longestBase/n] + "-" + podClaim[:len(podClaim)*longestBase/n]
	}
	return base
}

// madeFor returns the claim among those the pod owns that was made for one of its entries, nil when there is none.
func madeFor(owned []*resourceapi.ResourceClaim, podClaim string) *resourceapi.ResourceClaim {
	for _, c := range owned {
		if c.Annotations[resourceapi.PodResourceClaimAnnotation] == podClaim {
			return c
		}
	}
	return nil
}

// done reports whether the pod will run nothing any more.
func done(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed || p.DeletionTimestamp != nil && p.Spec.NodeName == ""
}

// claimNames are the claims that the pod uses, as far as they have been made.
func claimNames(p *v1.Pod) (names []string) {
	for i := range p.Spec.ResourceClaims {
		if name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i]); err == nil && name != nil {
			names = append(names, *name)
		}
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		names = append(names, s.ResourceClaimName)
	}
	return names
}

// isPod reports whether a consumer of a claim is a pod: about no other kind is anything known here.
func isPod(ref resourceapi.ResourceClaimConsumerReference) bool {
	return ref.APIGroup == "" && ref.Resource == "pods"
}

// owner returns the pod that a claim was made for; "" when a user made it.
func owner(claim *resourceapi.ResourceClaim) metav1.OwnerReference {
	if ref := metav1.GetControllerOfNoCopy(claim); ref != nil && ref.APIVersion == "v1" && ref.Kind == "Pod" {
		return *ref
	}
	return metav1.OwnerReference{}
}

// plan is the writes that a claim needs, in their order.
type plan struct {
	status       *resourceapi.ResourceClaim // write its status
	dropFinalize bool                       // then take the finalizer away
	remove       bool                       // then delete it
}

// decide says what to do about a claim. left are the consumers that still count, ended says that the pod it was made for has ended.
// A claim without consumers loses its devices: they are free for other claims at once.
func decide(claim *resourceapi.ResourceClaim, left []resourceapi.ResourceClaimConsumerReference, ended bool) (p plan) {
	ours := slices.Contains(claim.Finalizers, resourceapi.Finalizer)
	fewer := len(left) < len(claim.Status.ReservedFor)
	free := len(left) == 0 && ours && (fewer || claim.DeletionTimestamp != nil)
	if fewer || free && claim.Status.Allocation != nil {
		p.status = claim.DeepCopy()
		p.status.Status.ReservedFor = left
		if free {
			p.status.Status.Allocation = nil
		}
	}
	p.dropFinalize = free
	p.remove = len(left) == 0 && ended && claim.DeletionTimestamp == nil
	return p
}

// withoutFinalizer returns a copy of the claim without the scheduler's finalizer.
func withoutFinalizer(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	claim = claim.DeepCopy()
	claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == resourceapi.Finalizer })
	return claim
}
