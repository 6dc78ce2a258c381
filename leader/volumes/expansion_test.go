package volumes

import (
	"context"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

func TestAClaimIsToldWhoMakesItsVolumeLarger(t *testing.T) {
	csi := func(v *v1.PersistentVolume) {
		v.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "d"}}
	}
	for want, change := range map[string]func(*v1.PersistentVolume){
		"Normal ExternalExpanding waiting for an external controller":             csi,
		"Warning ExternalExpanding the volume behind this claim was made by hand": func(*v1.PersistentVolume) {},
	} {
		c := claim("2Gi")
		c.Spec.VolumeName = "v"
		c.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}}
		client := fake.NewClientset(c, volume("v", "1Gi", reserved("c", "u"), change))
		events := workqueuetest.Start(t, client, func(env workqueue.Env) (workqueue.Runner, error) { return NewExpansion(env, 1) })
		if e := <-events; !strings.HasPrefix(e, want) {
			t.Errorf("%s, want %s", e, want)
		}
	}
	bound := claim("1Gi")
	bound.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}}
	if asksForMore(bound) {
		t.Error("a claim that has what it asks for waits")
	}
}

func TestAClaimMadeBeforeThereWasADefaultClassGetsIt(t *testing.T) {
	none, old := "", claim("1Gi")
	by := claim("1Gi")
	by.Name, by.UID, by.Spec.StorageClassName = "by-hand", "h", &none
	client := fake.NewClientset(old, by)
	workqueuetest.Start(t, client, NewBinder)
	workqueuetest.Eventually(t, "the claim waits", func(ctx context.Context) (bool, error) {
		c, err := client.CoreV1().PersistentVolumeClaims("ns").Get(ctx, "c", metav1.GetOptions{})
		return err == nil && c.Status.Phase == v1.ClaimPending, err
	})
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast", Annotations: map[string]string{annDefaultClass: "true"}}, Provisioner: "p"}
	if _, err := client.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	workqueuetest.Eventually(t, "the claim has the class", func(ctx context.Context) (bool, error) {
		c, err := client.CoreV1().PersistentVolumeClaims("ns").Get(ctx, "c", metav1.GetOptions{})
		return err == nil && c.Spec.StorageClassName != nil && *c.Spec.StorageClassName == "fast", err
	})
	if c, err := client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "by-hand", metav1.GetOptions{}); err != nil || *c.Spec.StorageClassName != "" {
		t.Errorf("a claim that wants no class: %v %v", c, err)
	}
}

func TestAttributesClassesMatch(t *testing.T) {
	gold := "gold"
	c := claim("1Gi")
	c.Spec.VolumeAttributesClassName = &gold
	with := func(v *v1.PersistentVolume) { v.Spec.VolumeAttributesClassName = &gold }
	if suits(volume("v", "1Gi"), c) || !suits(volume("v", "1Gi", with), c) || suits(volume("v", "1Gi", with), claim("1Gi")) {
		t.Error("a volume of another VolumeAttributesClass is taken, or one of the same is not")
	}
}
