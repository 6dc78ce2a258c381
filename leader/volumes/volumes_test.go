package volumes

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func volume(name, size string, change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	v := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
		Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{}},
	}}
	for _, f := range change {
		f(v)
	}
	return v
}

func reserved(name string, uid types.UID) func(*v1.PersistentVolume) {
	return func(v *v1.PersistentVolume) {
		v.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ns", Name: name, UID: uid}
	}
}

func claim(size string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"}, Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}},
	}}
}

func TestChoose(t *testing.T) {
	class := func(v *v1.PersistentVolume) { v.Spec.StorageClassName = "fast" }
	block := func(v *v1.PersistentVolume) { m := v1.PersistentVolumeBlock; v.Spec.VolumeMode = &m }
	used := func(v *v1.PersistentVolume) { v.Status.Phase = v1.VolumeReleased }
	ending := func(v *v1.PersistentVolume) { at := metav1.Now(); v.DeletionTimestamp = &at }
	for _, c := range []struct {
		name    string
		volumes []*v1.PersistentVolume
		want    string
	}{
		{"none", nil, ""},
		{"the smallest that is large enough", []*v1.PersistentVolume{volume("big", "10Gi"), volume("fit", "2Gi"), volume("small", "500Mi")}, "fit"},
		{"ties by name", []*v1.PersistentVolume{volume("b", "2Gi"), volume("a", "2Gi")}, "a"},
		{"reserved for us", []*v1.PersistentVolume{volume("fit", "1Gi"), volume("ours", "10Gi", reserved("c", ""))}, "ours"},
		{"reserved for others", []*v1.PersistentVolume{volume("theirs", "1Gi", reserved("d", ""))}, ""},
		{"of a claim of our name that is gone", []*v1.PersistentVolume{volume("old", "1Gi", reserved("c", "before"))}, ""},
		{"another class", []*v1.PersistentVolume{volume("fast", "1Gi", class)}, ""},
		{"another mode", []*v1.PersistentVolume{volume("block", "1Gi", block)}, ""},
		{"released", []*v1.PersistentVolume{volume("used", "1Gi", used)}, ""},
		{"being deleted", []*v1.PersistentVolume{volume("ending", "1Gi", ending)}, ""},
	} {
		got := ""
		if v := choose(claim("1Gi"), c.volumes); v != nil {
			got = v.Name
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestWaitForFirstConsumer(t *testing.T) {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{VolumeBindingMode: &mode}
	c := claim("1Gi")
	if !waits(c, class) || waits(c, nil) {
		t.Fatal("wrong")
	}
	c.Annotations = map[string]string{annSelectedNode: "n"}
	if waits(c, class) {
		t.Fatal("waits although the node is chosen")
	}
}

func TestFateOfReleasedVolumes(t *testing.T) {
	policy := func(p v1.PersistentVolumeReclaimPolicy) func(*v1.PersistentVolume) {
		return func(v *v1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = p }
	}
	external := func(v *v1.PersistentVolume) { v.Annotations = map[string]string{annProvisionedBy: "x"} }
	if f := reclaimActionOf(volume("v", "1Gi", policy(v1.PersistentVolumeReclaimRetain))); f != release {
		t.Error(f)
	}
	if f := reclaimActionOf(volume("v", "1Gi", policy(v1.PersistentVolumeReclaimDelete))); f != remove {
		t.Error(f)
	}
	if f := reclaimActionOf(volume("v", "1Gi", policy(v1.PersistentVolumeReclaimDelete), external)); f != release {
		t.Error(f)
	}
}

func TestPodsUseTheirEphemeralClaims(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: v1.PodSpec{Volumes: []v1.Volume{
		{Name: "a", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}},
		{Name: "b", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}},
		{Name: "d", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
	}}}
	if got := claimsOf(p); len(got) != 2 || got[0].Name != "c" || got[1].Name != "p-b" {
		t.Fatal(got)
	}
	if uses(p) {
		t.Fatal("a pod without a node holds its claims")
	}
}
