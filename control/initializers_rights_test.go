package control_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/control/legacy/initializers"
)

func (w *initWorld) rights(t *testing.T) {
	ns := w.space()
	ctx := testContext(t)
	maps, janes := w.client.CoreV1().ConfigMaps(ns), w.jane.CoreV1().ConfigMaps(ns)
	with := func(name, state string) *corev1.ConfigMap {
		m := configMap(name, nil)
		m.Annotations = map[string]string{initializers.Annotation: state, "other": "1"}
		return m
	}
	for _, state := range []string{`{}`, `{"pending": [{"name": "a.example.com"}]}`, `garbage`} {
		if _, err := janes.Create(ctx, with("m", state), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "create with initializers denied") {
			t.Errorf("%s by one who may not: %v", state, err)
		}
	}
	for state, is := range map[string]func(error) bool{
		`garbage`: apierrors.IsBadRequest, `{"pending": [{"name": "short"}]}`: apierrors.IsInvalid, `{"pending": "a.example.com"}`: apierrors.IsBadRequest,
		`{"pending": [], "more": 1}`: apierrors.IsBadRequest, `{} {}`: apierrors.IsBadRequest, `{"result": {"status": "Success"}}`: apierrors.IsInvalid,
		strings.Repeat(`{"pending":[`, 20000): apierrors.IsBadRequest, ``: apierrors.IsBadRequest,
	} {
		if _, err := maps.Create(ctx, with("m", state), metav1.CreateOptions{}); !is(err) {
			t.Errorf("%.40s: %v", state, err)
		}
	}
	w.configure(t, "maps", "", "configmaps", "never.example.com")
	m, err := maps.Create(ctx, with("m", `{"pending": []}`), metav1.CreateOptions{})
	if err != nil || len(m.Annotations) != 1 {
		t.Fatalf("passing initialization by: %v %v", err, m)
	}
	m.Annotations = pending("a.example.com")
	if _, err := maps.Update(ctx, m, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "immutable once initialization has completed") {
		t.Errorf("waiting again: %v", err)
	}
	if m, err = w.all.CoreV1().ConfigMaps(ns).Create(ctx, configMap("n", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, patch := range map[string]string{"finish": finished, "change": `{"data": {"k": "v"}}`} {
		if _, err := janes.Patch(ctx, "n", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "update to uninitialized resource denied") {
			t.Errorf("%s by one who may not: %v", name, err)
		}
	}
	w.parts(t, ns)
	if err := janes.Delete(ctx, m.Name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete: %v", err)
	}
}

// parts: what is written beside the object itself changes nothing of what it waits for.
func (w *initWorld) parts(t *testing.T, ns string) {
	ctx := testContext(t)
	p := initPod("p")
	p.Annotations = pending("a.example.com")
	if _, err := w.all.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pods := w.jane.CoreV1().Pods(ns)
	if _, err := pods.Patch(ctx, "p", types.MergePatchType, []byte(`{"status": {"message": "m"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Errorf("status: %v", err)
	}
	if _, err := pods.Patch(ctx, "p", types.MergePatchType, []byte(finished), metav1.PatchOptions{}, "status"); !apierrors.IsForbidden(err) {
		t.Errorf("finishing by the status: %v", err)
	}
	if _, err := w.client.CoreV1().Pods(ns).Create(ctx, initPod("seen"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bind := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "seen", Annotations: pending("a.example.com")}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
	if err := pods.Bind(ctx, bind, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("hiding by a binding: %v", err)
	}
	err := w.jane.CoreV1().RESTClient().Post().Namespace(ns).Resource("bindings").Body(bind).Do(ctx).Error()
	if !apierrors.IsForbidden(err) {
		t.Errorf("hiding by a binding of the old form: %v", err)
	}
	if err := w.client.CoreV1().Pods(ns).Bind(ctx, bind, metav1.CreateOptions{}); !apierrors.IsBadRequest(err) {
		t.Errorf("hiding by a binding, by one who may: %v", err)
	}
	w.configure(t, "bindings", "", "*", "a.example.com")
	bind.Annotations = nil
	if err := w.client.CoreV1().RESTClient().Post().Namespace(ns).Resource("bindings").Body(bind).Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	if p, err := pods.Get(ctx, "seen", metav1.GetOptions{}); err != nil || p.Spec.NodeName != "n" || initializers.Uninitialized(p) {
		t.Errorf("a pod that is bound: %v %v", err, p)
	}
}
