package quota

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

func amounts(kv ...string) v1.ResourceList {
	out := v1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		out[v1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
	}
	return out
}

func TestCountedKinds(t *testing.T) {
	q := &v1.ResourceQuota{Spec: v1.ResourceQuotaSpec{Hard: amounts("pods", "1", "count/pods", "1", "secrets", "1", "count/deployments.apps", "1", "requests.cpu", "1")}}
	got := counted(q)
	if len(got) != 2 || got[schema.GroupResource{Resource: "secrets"}] != v1.ResourceSecrets {
		t.Fatal(got)
	}
	if _, ok := got[schema.GroupResource{Group: "apps", Resource: "deployments"}]; !ok {
		t.Fatal(got)
	}
}

func TestStatusShowsWhatIsLimited(t *testing.T) {
	q := &v1.ResourceQuota{Spec: v1.ResourceQuotaSpec{Hard: amounts("pods", "5", "secrets", "3")}, Status: v1.ResourceQuotaStatus{Used: amounts("secrets", "2", "old", "1")}}
	s, changed := statusOf(q, amounts("pods", "1", "services", "4"))
	if !changed || len(s.Used) != 2 || s.Used.Pods().Value() != 1 {
		t.Fatalf("%+v", s)
	}
	if n := s.Used["secrets"]; n.Value() != 2 {
		t.Fatal("what could not be found out is lost")
	}
	q.Status = s
	if _, changed := statusOf(q, amounts("pods", "1")); changed {
		t.Fatal("the same usage changes the status")
	}
}

func TestWhatFreesQuota(t *testing.T) {
	running, ended := &v1.Pod{Status: v1.PodStatus{Phase: v1.PodRunning}}, &v1.Pod{Status: v1.PodStatus{Phase: v1.PodSucceeded}}
	if frees(nil, running) || frees(running, running) || !frees(running, ended) || !frees(running, nil) {
		t.Fatal("wrong")
	}
	deadline := running.DeepCopy()
	deadline.Spec.ActiveDeadlineSeconds = ptr.To(int64(3600))
	if !frees(running, deadline) || !frees(deadline, running) {
		t.Fatal("a pod that gets a deadline, or loses it, stays in its scope")
	}
}

func TestAClaimsClassIsInItsSpecAndInItsStatus(t *testing.T) {
	gold := &v1.PersistentVolumeClaim{Status: v1.PersistentVolumeClaimStatus{CurrentVolumeAttributesClassName: ptr.To("gold")}}
	silver := &v1.PersistentVolumeClaim{Status: v1.PersistentVolumeClaimStatus{CurrentVolumeAttributesClassName: ptr.To("silver")}}
	wanted := gold.DeepCopy()
	wanted.Spec.VolumeAttributesClassName = ptr.To("silver")
	if claimChanges(nil, gold) || claimChanges(gold, gold.DeepCopy()) {
		t.Fatal("a claim as it was is reckoned again")
	}
	if !claimChanges(gold, silver) || !claimChanges(gold, wanted) || !claimChanges(gold, nil) {
		t.Fatal("a claim of another class is not reckoned again")
	}
}

func TestDevicesAreCountedForQuotasThatLimitThem(t *testing.T) {
	for name, want := range map[string]bool{
		"count/resourceclaims.resource.k8s.io": true, "gold.deviceclass.resource.k8s.io/devices": true, "requests.example.com/gpu": true,
		"requests.cpu": false, "pods": false, "count/pods": false,
	} {
		q := &v1.ResourceQuota{Spec: v1.ResourceQuotaSpec{Hard: amounts(name, "1")}}
		if limitsDevices(q) != want {
			t.Errorf("%s: %v", name, !want)
		}
		if name == "count/resourceclaims.resource.k8s.io" && len(counted(q)) != 0 {
			t.Error("claims are counted twice")
		}
	}
}
