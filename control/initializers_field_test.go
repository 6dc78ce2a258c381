package control_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	restclient "k8s.io/client-go/rest"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/legacy/initializers"
)

// pendingField are the names in metadata.initializers, joined.
func pendingField(o *unstructured.Unstructured) string {
	list, _, _ := unstructured.NestedSlice(o.Object, "metadata", "initializers", "pending")
	var names []string
	for _, e := range list {
		if m, ok := e.(map[string]any); ok {
			name, _ := m["name"].(string)
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// field: metadata.initializers is shown and taken by clients that speak JSON.
func (w *initWorld) field(t *testing.T) {
	ns := w.space()
	maps := corev1.SchemeGroupVersion.WithResource("configmaps")
	all := dynamic.NewForConfigOrDie(w.seeingAll()).Resource(maps).Namespace(ns)
	body := func(name, more string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		if err := json.Unmarshal([]byte(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "`+name+`"`+more+`}}`), &o.Object); err != nil {
			t.Fatal(err)
		}
		return o
	}
	strict := metav1.CreateOptions{FieldValidation: "Strict"}
	events, err := all.Watch(testContext(t), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	o, err := all.Create(testContext(t), body("m", `, "initializers": {"pending": [{"name": "a.example.com"}, {"name": "b.example.com"}, {"name": "c.example.com"}, {"name": "d.example.com"}, {"name": "e.example.com"}]}`), strict)
	const five = "a.example.com b.example.com c.example.com d.example.com e.example.com"
	if err != nil || pendingField(o) != five {
		t.Fatalf("%v %v", err, o)
	}
	list, err := all.List(testContext(t), metav1.ListOptions{})
	if err != nil || pendingField(&list.Items[slices.IndexFunc(list.Items, func(o unstructured.Unstructured) bool { return o.GetName() == "m" })]) != five {
		t.Errorf("listed %v %v", err, list)
	}
	for e := range events.ResultChan() {
		if o, ok := e.Object.(*unstructured.Unstructured); ok && o.GetName() == "m" {
			if pendingField(o) != five {
				t.Errorf("watched %v", o)
			}
			break
		}
	}
	w.fieldWritten(t, all, five)
	w.fieldRefused(t, ns, body)
}

// fieldWritten takes names off an object's list in every way.
func (w *initWorld) fieldWritten(t *testing.T, all dynamic.ResourceInterface, five string) {
	var o *unstructured.Unstructured
	var err error
	for _, p := range []struct {
		kind types.PatchType
		text string
		left string
	}{
		{types.StrategicMergePatchType, `{"metadata": {"initializers": {"pending": [{"$patch": "delete", "name": "a.example.com"}]}}}`, five[14:]},
		{types.JSONPatchType, `[{"op": "test", "path": "/metadata/initializers/pending/0/name", "value": "b.example.com"}, {"op": "remove", "path": "/metadata/initializers/pending/0"}, {"op": "add", "path": "/data", "value": {"k": "v"}}]`, five[28:]},
		{types.MergePatchType, `{"metadata": {"initializers": {"pending": [{"name": "d.example.com"}, {"name": "e.example.com"}]}}}`, five[42:]},
	} {
		if o, err = all.Patch(testContext(t), "m", p.kind, []byte(p.text), metav1.PatchOptions{FieldValidation: "Strict"}); err != nil || pendingField(o) != p.left {
			t.Fatalf("%s: %v %v", p.kind, err, o)
		}
	}
	o.SetAnnotations(pending("d.example.com", "e.example.com", "f.example.com")) // the field is what was read: the annotation counts
	if o, err = all.Update(testContext(t), o, metav1.UpdateOptions{}); err != nil || pendingField(o) != "d.example.com e.example.com f.example.com" {
		t.Fatalf("update of the annotation: %v %v", err, o)
	}
	if err := unstructured.SetNestedSlice(o.Object, []any{map[string]any{"name": "f.example.com"}}, "metadata", "initializers", "pending"); err != nil {
		t.Fatal(err)
	}
	if o, err = all.Update(testContext(t), o, metav1.UpdateOptions{FieldValidation: "Strict"}); err != nil || pendingField(o) != "f.example.com" {
		t.Fatalf("update of the field: %v %v", err, o)
	}
	if _, err := all.Patch(testContext(t), "m", types.JSONPatchType, []byte(`[{"op": "test", "path": "/metadata/initializers/pending/0/name", "value": "g.example.com"}]`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a test that fails: %v", err)
	}
	o, err = all.Patch(testContext(t), "m", types.StrategicMergePatchType, []byte(`{"metadata": {"initializers": null}}`), metav1.PatchOptions{FieldValidation: "Strict"})
	if err != nil || o.GetAnnotations() != nil || pendingField(o) != "" || o.Object["data"] == nil {
		t.Errorf("the last one: %v %v", err, o)
	}
}

func (w *initWorld) fieldRefused(t *testing.T, ns string, body func(name, more string) *unstructured.Unstructured) {
	maps := corev1.SchemeGroupVersion.WithResource("configmaps")
	as := func(user string) dynamic.ResourceInterface {
		c := restclient.CopyConfig(w.admin())
		c.Impersonate = restclient.ImpersonationConfig{UserName: user}
		return dynamic.NewForConfigOrDie(c).Resource(maps).Namespace(ns)
	}
	admin := dynamic.NewForConfigOrDie(w.admin()).Resource(maps).Namespace(ns)
	w.configure(t, "field", "", "configmaps", "never.example.com")
	if _, err := as("jane").Create(testContext(t), body("n", `, "initializers": {"pending": []}`), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("passing initialization by, by one who may not: %v", err)
	}
	if o, err := admin.Create(testContext(t), body("n", `, "initializers": {"pending": []}`), metav1.CreateOptions{}); err != nil || pendingField(o) != "" {
		t.Errorf("passing initialization by: %v", err)
	}
	for _, garbage := range []string{`"text"`, `[]`, `{"pending": {}}`, `{"pending": [{"name": 1}]}`, `1e400`, `{"pending": [{"name": "short"}]}`} {
		raw := strings.Replace(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "g", "initializers": X}}`, "X", garbage, 1)
		err := w.client.CoreV1().RESTClient().Post().Namespace(ns).Resource("configmaps").SetHeader("Content-Type", "application/json").Body([]byte(raw)).Do(testContext(t)).Error()
		if !apierrors.IsBadRequest(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", garbage, err)
		}
	}
}

// cleaners: the controllers that remove what is left of namespaces and owners, and people who read by hand.
func (w *initWorld) cleaners(t *testing.T) {
	ns := w.space()
	m := configMap("m", nil)
	m.Annotations = pending("a.example.com")
	if _, err := w.all.CoreV1().ConfigMaps(ns).Create(testContext(t), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"namespace-controller": 1, "generic-garbage-collector": 1, "deployment-controller": 0} {
		c := w.Client(control.Identity{User: "system:serviceaccount:kube-system:" + name, Groups: []string{"system:masters"}})
		list, err := clientset(t, c).CoreV1().ConfigMaps(ns).List(context.Background(), metav1.ListOptions{})
		if err != nil || len(list.Items) != want {
			t.Errorf("%s sees %d, %v", name, len(list.Items), err)
		}
	}
	transport, err := restclient.TransportFor(w.admin())
	if err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]bool{"": false, "?includeUninitialized=true": true, "?includeUninitialized": true, "?includeUninitialized=0": false, "?includeUninitialized=False": false} {
		req, err := http.NewRequestWithContext(testContext(t), http.MethodGet, "https://"+w.address+"/api/v1/namespaces/"+ns+"/configmaps"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("User-Agent", "curl/8.0")
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || strings.Contains(string(text), "\n        \"initializers\": {\n") != want || strings.Contains(string(text), initializers.Annotation) != want {
			t.Errorf("%s: %v %s", query, err, text)
		}
	}
}
