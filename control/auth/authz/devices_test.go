package authz_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	_ "k8s.io/kubernetes/pkg/apis/resource/install" // decodes slices, as the server does
)

func TestANodeReachesItsOwnSlicesAndItsPodsClaims(t *testing.T) {
	c := newCluster(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"},
		Spec: corev1.PodSpec{NodeName: "n1", ResourceClaims: []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: new("direct")}}},
		Status: corev1.PodStatus{
			ResourceClaimStatuses:       []corev1.PodResourceClaimStatus{{Name: "b", ResourceClaimName: new("generated")}},
			ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended"},
		}}
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourcev1.ResourceSliceSpec{NodeName: new("n1"), Driver: "d"}}
	c.write(t, op(t, "pods/n/p", pod, "v1", "Pod"), op(t, "resourceslices/s", slice, "resource.k8s.io/v1", "ResourceSlice"))
	n1 := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes", user.AllAuthenticated}}
	n2 := &user.DefaultInfo{Name: "system:node:n2", Groups: []string{"system:nodes", user.AllAuthenticated}}
	may := func(a authorizer.AttributesRecord) bool { a.APIGroup = resourcev1.GroupName; return c.may(t, a) }
	for _, claim := range []string{"direct", "generated", "extended"} {
		if !may(ask(n1, "get", "resourceclaims", "n", claim)) || may(ask(n2, "get", "resourceclaims", "n", claim)) {
			t.Errorf("claim %s: not for the pod's node alone", claim)
		}
	}
	for _, verb := range []string{"get", "update", "patch", "delete"} {
		if !may(ask(n1, verb, "resourceslices", "", "s")) || may(ask(n2, verb, "resourceslices", "", "s")) {
			t.Errorf("%s of a slice: not for its node alone", verb)
		}
	}
	if may(ask(n1, "list", "resourceslices", "", "")) || may(ask(n1, "update", "resourceclaims", "n", "direct")) {
		t.Error("a node lists all slices, or writes claims")
	}
}
