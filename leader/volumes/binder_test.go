package volumes

import (
	"context"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

// bind starts the binder; what it returns waits until claim c and volume v are bound to each other.
func bind(t *testing.T, client *fake.Clientset) (awaitBound func()) {
	t.Helper()
	workqueuetest.Start(t, client, NewBinder)
	return func() {
		t.Helper()
		workqueuetest.Eventually(t, "the claim is bound", func(ctx context.Context) (bool, error) {
			c, err := client.CoreV1().PersistentVolumeClaims("ns").Get(ctx, "c", metav1.GetOptions{})
			if err != nil || c.Status.Phase != v1.ClaimBound {
				return false, err
			}
			v, err := client.CoreV1().PersistentVolumes().Get(ctx, "v", metav1.GetOptions{})
			return err == nil && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID == c.UID && v.Status.Phase == v1.VolumeBound, err
		})
	}
}

// TestAClaimIsBoundToTheVolumeItNamesWhenThatComes: nothing but the volume's own event tells that its turn has come.
func TestAClaimIsBoundToTheVolumeItNamesWhenThatComes(t *testing.T) {
	waiting := claim("1Gi")
	waiting.Spec.VolumeName = "v"
	client := fake.NewClientset(waiting)
	awaitBound := bind(t, client)
	workqueuetest.Eventually(t, "the claim waits", func(ctx context.Context) (bool, error) {
		c, err := client.CoreV1().PersistentVolumeClaims("ns").Get(ctx, "c", metav1.GetOptions{})
		return err == nil && c.Status.Phase == v1.ClaimPending, err
	})
	if _, err := client.CoreV1().PersistentVolumes().Create(t.Context(), volume("v", "1Gi"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitBound()
}

// TestABindingWhoseEveryWritePanicsOnceIsFinished: the binder stops between any two writes and begins again.
func TestABindingWhoseEveryWritePanicsOnceIsFinished(t *testing.T) {
	client := fake.NewClientset(claim("1Gi"), volume("v", "1Gi"))
	var panics atomic.Int32
	failed := map[string]bool{} // the fake API takes one request at a time
	client.PrependReactor("update", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if write := a.GetResource().Resource + "/" + a.GetSubresource(); !failed[write] {
			failed[write] = true
			panics.Add(1)
			panic("planted at " + write)
		}
		return false, nil, nil
	})
	bind(t, client)()
	if n := panics.Load(); n != 4 {
		t.Errorf("%d panics, want one of the spec and one of the status of each", n)
	}
}
