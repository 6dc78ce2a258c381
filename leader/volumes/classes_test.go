package volumes

import (
	"context"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

func TestClassesStayWhileSomethingNamesThem(t *testing.T) {
	gold, silver := "gold", "silver"
	moving := claim("1Gi")
	moving.Spec.VolumeAttributesClassName, moving.Status.CurrentVolumeAttributesClassName = &silver, &gold
	ending := func(name string) *storagev1.VolumeAttributesClass {
		at := metav1.Now()
		return &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name, DeletionTimestamp: &at, Finalizers: []string{"example.test/other", classFinalizer}}}
	}
	client := fake.NewClientset(ending(gold), ending(silver), ending("free"), &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "new"}},
		moving, volume("v", "1Gi", func(v *v1.PersistentVolume) { v.Spec.VolumeAttributesClassName = &gold }))
	workqueuetest.Start(t, client, func(e workqueue.Env) (workqueue.Runner, error) { return NewClassProtection(e, 1) })
	guarded := func(name string) bool {
		class, err := client.StorageV1().VolumeAttributesClasses().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(class.Finalizers, classFinalizer)
	}
	await := func(what string, want map[string]bool) {
		t.Helper()
		workqueuetest.Eventually(t, what, func(context.Context) (bool, error) {
			for name, is := range want {
				if guarded(name) != is {
					return false, nil
				}
			}
			return true, nil
		})
	}
	await("a new class is guarded, one that nobody names is let go", map[string]bool{"new": true, "free": false, gold: true, silver: true})

	moved := moving.DeepCopy()
	moved.Status.CurrentVolumeAttributesClassName = &silver
	if _, err := client.CoreV1().PersistentVolumeClaims("ns").UpdateStatus(t.Context(), moved, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().PersistentVolumes().Delete(t.Context(), "v", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	await("the last that named gold lets it go", map[string]bool{gold: false, silver: true})
	if err := client.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), moved.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await("nothing names silver", map[string]bool{silver: false, "new": true})
}
