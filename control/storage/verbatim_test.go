package storage

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apistorage "k8s.io/apiserver/pkg/storage"
)

// adding is a codec of unstructured objects that counts what it decodes, and adds a
// field to objects whose name begins with "old".
type adding struct {
	runtime.Codec
	decoded atomic.Int64
}

func (r *adding) Decode(data []byte, gvk *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	r.decoded.Add(1)
	obj, kind, err := r.Codec.Decode(data, gvk, into)
	if u, ok := obj.(*unstructured.Unstructured); ok && strings.HasPrefix(u.GetName(), "old") {
		u.Object["added"] = "by default"
	}
	return obj, kind, err
}

func gadget(name, group string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Gadget", "alpha": map[string]any{"x": []any{"\"}", int64(1)}},
		"spec": map[string]any{"text": "<é>\\", "number": 1.5},
	}}
	u.SetName(name)
	u.SetUID(types.UID("uid-" + name))
	u.SetLabels(map[string]string{"group": group})
	return u
}

// TestWhatIsReadAsItIsStoredIsDecodedOnce: the first list finds out, others give what is stored; what reads otherwise is
// decoded, and all of it is what decoding gives.
func TestWhatIsReadAsItIsStoredIsDecodedOnce(t *testing.T) {
	codec := &adding{Codec: unstructured.UnstructuredJSONScheme}
	s := New(Config{
		Store: newRaftstore(t), Codec: codec, Prefix: "/registry", ResourcePrefix: "/gadgets", GroupResource: schema.GroupResource{Group: "example.com", Resource: "gadgets"},
		NewFunc: func() runtime.Object { return &unstructured.Unstructured{} }, NewListFunc: func() runtime.Object { return &unstructured.UnstructuredList{} },
	})
	ctx := t.Context()
	for i := range 20 {
		name := fmt.Sprintf("new-%02d", i)
		if i%5 == 4 {
			name = fmt.Sprintf("old-%02d", i)
		}
		if err := s.Create(ctx, "/gadgets/ns/"+name, gadget(name, fmt.Sprint(i%2)), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, selector := range []string{"", "group=1", "group!=0,other!=x", "other"} {
		p := apistorage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(), GetAttrs: gadgetAttrs}
		if selector != "" {
			var err error
			if p.Label, err = labels.Parse(selector); err != nil {
				t.Fatal(err)
			}
		}
		want := &unstructured.UnstructuredList{}
		if err := s.GetList(ctx, "/gadgets", apistorage.ListOptions{Recursive: true, Predicate: p}, want); err != nil {
			t.Fatal(err)
		}
		for round := range 3 {
			before := codec.decoded.Load()
			same(t, s, p, want)
			if n := codec.decoded.Load() - before; (round > 0 || selector != "") && n > 4 {
				t.Errorf("%q, list %d: %d objects are decoded, of which 4 are not read as they are stored", selector, round, n)
			}
		}
	}
	for _, name := range []string{"new-00", "old-04"} {
		v, u := &Verbatim{}, &unstructured.Unstructured{}
		if err := s.Get(WithVerbatim(ctx, v), "/gadgets/ns/"+name, apistorage.GetOptions{}, u); err != nil {
			t.Fatal(err)
		}
		if v.Taken != (name == "new-00") || v.Taken && !bytes.Contains(v.Texts[0].Append(nil), []byte(`"name":"new-00","resourceVersion":"2"`)) {
			t.Errorf("%s: %v %v", name, v, u)
		}
	}
}

// same compares a list of texts with one of objects.
func same(t *testing.T, s apistorage.Interface, p apistorage.SelectionPredicate, want *unstructured.UnstructuredList) {
	t.Helper()
	v, list := &Verbatim{}, &unstructured.UnstructuredList{}
	if err := s.GetList(WithVerbatim(t.Context(), v), "/gadgets", apistorage.ListOptions{Recursive: true, Predicate: p}, list); err != nil {
		t.Fatal(err)
	}
	if !v.Taken || len(list.Items) != 0 || len(v.Texts) != len(want.Items) || list.GetResourceVersion() != want.GetResourceVersion() {
		t.Fatalf("%d texts, %d objects, want %d", len(v.Texts), len(list.Items), len(want.Items))
	}
	for i := range v.Texts {
		text, err := want.Items[i].MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if got := v.Texts[i].Append(nil); string(got) != strings.TrimSpace(string(text)) {
			t.Errorf("%s\nwant %s", got, text)
		}
	}
}

func gadgetAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	o, ok := obj.(metav1.Object)
	if !ok {
		return nil, nil, fmt.Errorf("%T has no metadata", obj)
	}
	return o.GetLabels(), nil, nil
}
