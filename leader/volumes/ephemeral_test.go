package volumes

import (
	"context"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

func TestEphemeralVolumesGetTheirClaims(t *testing.T) {
	class := "fast"
	pod := func(name string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "1"}, Spec: v1.PodSpec{Volumes: []v1.Volume{
			{Name: "plain"},
			{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: v1.PersistentVolumeClaimSpec{StorageClassName: &class},
			}}}},
		}}}
	}
	foreign := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "robbed-scratch"}}
	client := fake.NewClientset(pod("p"), pod("robbed"), foreign)
	events := workqueuetest.Start(t, client, func(env workqueue.Env) (workqueue.Runner, error) { return NewEphemeral(env, 1) })
	claims := client.CoreV1().PersistentVolumeClaims("ns")
	var claim *v1.PersistentVolumeClaim
	there := func(ctx context.Context) (ok bool, err error) {
		claim, err = claims.Get(ctx, "p-scratch", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	}
	workqueuetest.Eventually(t, "a claim", there)
	owner := metav1.GetControllerOf(claim)
	if owner == nil || owner.Kind != "Pod" || owner.Name != "p" || owner.UID != "1" || claim.Labels["a"] != "b" || *claim.Spec.StorageClassName != class {
		t.Errorf("%+v", claim)
	}
	if e := <-events; !strings.Contains(e, "FailedBinding") || !strings.Contains(e, "robbed-scratch was not created for pod ns/robbed") {
		t.Errorf("a claim that is another's: %s", e)
	}
	if err := claims.Delete(t.Context(), "p-scratch", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	workqueuetest.Eventually(t, "the claim anew", there)
}
