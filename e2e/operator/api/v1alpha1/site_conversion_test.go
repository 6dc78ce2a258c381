package v1alpha1

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "example.com/site-operator/api/v1"
)

func TestNothingIsLostOnTheWayThroughTheOldVersion(t *testing.T) {
	want := &v1.Site{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"else": "stays"}},
		Spec: v1.SiteSpec{
			Image: "i:1", Replicas: ptr.To[int32](3), MaxReplicas: ptr.To[int32](5), Message: "m", Host: "h", Port: 8080,
			Env: []corev1.EnvVar{{Name: "N", Value: "v"}},
		},
		Status: v1.SiteStatus{Replicas: 3, URL: "u", Conditions: []metav1.Condition{{Type: v1.ConditionAvailable, Status: metav1.ConditionTrue}}},
	}
	old, got := &Site{}, &v1.Site{}
	if err := old.ConvertFrom(want); err != nil {
		t.Fatal(err)
	}
	if old.Spec.Text != "m" || *old.Spec.Size != 3 || !old.Status.Ready {
		t.Errorf("in the old version: %+v %+v", old.Spec, old.Status)
	}
	if err := old.ConvertTo(got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("came back as\n%+v\nwant\n%+v", got, want)
	}
}
