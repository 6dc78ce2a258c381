package control_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const gizmosGroup = "verbatim.example.com"

// gizmoSchema is of two versions that differ in what is put in by default, and in what they know.
func gizmoSchema(size int, fields ...string) *apiextensionsv1.CustomResourceValidation {
	spec := map[string]apiextensionsv1.JSONSchemaProps{
		"size": {Type: "integer", Default: &apiextensionsv1.JSON{Raw: fmt.Append(nil, size)}},
		"free": {Type: "object", XPreserveUnknownFields: ptr.To(true)},
	}
	for _, f := range fields {
		spec[f] = apiextensionsv1.JSONSchemaProps{XPreserveUnknownFields: ptr.To(true), Nullable: true}
	}
	return &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
		Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"spec":   {Type: "object", Properties: spec},
			"data":   {Type: "object", XPreserveUnknownFields: ptr.To(true)},
			"status": {Type: "object", XPreserveUnknownFields: ptr.To(true)},
		},
	}}
}

func gizmoDefinition() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gizmos." + gizmosGroup},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: gizmosGroup, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gizmos", Singular: "gizmo", Kind: "Gizmo"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v1", Served: true, Storage: true, Schema: gizmoSchema(3, "one", "two")},
				{Name: "v2", Served: true, Schema: gizmoSchema(3, "one", "two", "three")},
			},
		},
	}
}

var words = []string{"", "a", "<b>&", "\"quoted\" \\", "é\u2028世界", "}],{", "true", "1.0", strings.Repeat("long ", 300), "\t\n\x01"}

// anything is a random value of JSON.
func anything(r *rand.Rand, depth int) any {
	switch n := r.IntN(10); {
	case n < 2 && depth > 0:
		out := map[string]any{}
		for range r.IntN(4) {
			out[fmt.Sprint(words[r.IntN(len(words))], r.IntN(3))] = anything(r, depth-1)
		}
		return out
	case n < 4 && depth > 0:
		out := []any{}
		for range r.IntN(4) {
			out = append(out, anything(r, depth-1))
		}
		return out
	case n < 6:
		return json.Number([]string{"0", "-1", "1.0", "2.50", "1e3", "9007199254740993", "-0.0", "1e-7"}[r.IntN(8)])
	case n < 7:
		return r.IntN(2) == 0
	case n < 8:
		return nil
	}
	return words[r.IntN(len(words))]
}

func gizmo(r *rand.Rand, i int) []byte {
	meta := map[string]any{"name": fmt.Sprintf("g%02d", i), "labels": map[string]any{"half": fmt.Sprint(i % 2), "example.com/x": "y"}}
	if r.IntN(2) == 0 {
		meta["annotations"] = map[string]any{"note": words[r.IntN(len(words))]}
	}
	if r.IntN(3) == 0 {
		meta["ownerReferences"] = []any{map[string]any{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}}
	}
	spec := map[string]any{"free": map[string]any{"x": anything(r, 4)}, "unknown": "goes"}
	for _, name := range []string{"one", "two", "three", "size"} {
		switch {
		case r.IntN(2) == 0:
		case name == "size":
			spec[name] = r.IntN(9)
		default:
			spec[name] = anything(r, 3)
		}
	}
	text, err := json.Marshal(map[string]any{"apiVersion": gizmosGroup + "/v" + fmt.Sprint(1+i%2), "kind": "Gizmo", "metadata": meta, "spec": spec,
		"data": map[string]any{"y": anything(r, 2)}, "status": map[string]any{"z": anything(r, 2)}})
	if err != nil {
		panic(err)
	}
	return text
}

// TestCustomResourcesAreReadAsUpstreamReadsThem: lists and objects that are put together from what is stored are, byte for
// byte, what decoding, converting, pruning, defaulting and encoding give, also after the schema has changed.
func TestCustomResourcesAreReadAsUpstreamReadsThem(t *testing.T) {
	ctx, ns := testContext(t), namespace(t)
	crds := extensionsclient.NewForConfigOrDie(shared.admin()).ApiextensionsV1().CustomResourceDefinitions()
	definition, err := crds.Create(ctx, gizmoDefinition(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = crds.Delete(ctx, definition.Name, metav1.DeleteOptions{}) }()
	path := func(version string) string {
		return "/apis/" + gizmosGroup + "/" + version + "/namespaces/" + ns + "/gizmos"
	}
	settles(t, "the kind is served", func() bool {
		code, _, _ := raw(t, "GET", path("v1"), "", "application/json", "")
		return code == 200
	})
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 40 {
		body := gizmo(r, i)
		if code, _, answer := raw(t, "POST", path(fmt.Sprint("v", 1+i%2)), "application/json", "application/json", string(body)); code != 201 {
			t.Fatalf("%d %s\n%s", code, answer, body)
		}
	}
	compareReads(t, path)

	settles(t, "the schema is changed", func() bool {
		if definition, err = crds.Get(ctx, definition.Name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		definition.Spec.Versions[0].Schema, definition.Spec.Versions[1].Schema = gizmoSchema(7, "one", "four"), gizmoSchema(8, "two")
		definition, err = crds.Update(ctx, definition, metav1.UpdateOptions{})
		return err == nil
	})
	settles(t, "it shows", func() bool {
		code, _, body := raw(t, "POST", path("v1")+"?dryRun=All", "application/json", "application/json",
			`{"apiVersion":"`+gizmosGroup+`/v1","kind":"Gizmo","metadata":{"name":"probe"},"spec":{}}`)
		return code == 201 && strings.Contains(body, `"size":7`)
	})
	compareReads(t, path)
}

// compareReads asks for everything several times: what is decoded at first need not be later.
func compareReads(t *testing.T, path func(version string) string) {
	t.Helper()
	_, _, body := raw(t, "GET", path("v1"), "", "application/json", "")
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Items) == 0 {
		t.Fatal(err, body)
	}
	at := "resourceVersionMatch=Exact&resourceVersion=" + list.ResourceVersion
	for _, version := range []string{"v1", "v2"} {
		queries := []string{path(version) + "?" + at, path(version) + "?" + at + "&labelSelector=" + url.QueryEscape("half=1,example.com/x notin (z)"),
			path(version) + "?" + at + "&limit=7", path(version) + "?" + at + "&labelSelector=none", "/apis/" + gizmosGroup + "/" + version + "/gizmos?" + at}
		for _, o := range list.Items[:10] {
			queries = append(queries, path(version)+"/"+o.Name+"?")
		}
		for _, q := range queries {
			_, want, there := raw(t, "GET", q+"&nobody-knows=1", "", "application/json", "")
			for range 3 {
				code, header, here := raw(t, "GET", q, "", "application/json", "")
				if code != 200 || here != there || header.Get("Content-Type") != want.Get("Content-Type") {
					t.Fatalf("%s: %d %v\n%s\nwant %v\n%s", q, code, header, here, want, there)
				}
			}
		}
	}
	// Page after page of what has been found out, and what nobody knows.
	for next, n := "", 0; ; {
		q := path("v1") + "?limit=9&continue=" + url.QueryEscape(next)
		_, _, here := raw(t, "GET", q, "", "application/json", "")
		var page metav1.PartialObjectMetadataList
		if err := json.Unmarshal([]byte(here), &page); err != nil {
			t.Fatal(err, here)
		}
		if n += len(page.Items); page.Continue == "" {
			if n != len(list.Items) {
				t.Errorf("pages have %d objects of %d", n, len(list.Items))
			}
			break
		}
		next = page.Continue
	}
	if code, _, body := raw(t, "GET", path("v1")+"/nobody", "", "application/json", ""); code != 404 {
		t.Errorf("%d %s", code, body)
	}
	if code, _, body := raw(t, "GET", path("v1")+"?resourceVersion=x", "", "application/json", ""); code != 400 {
		t.Errorf("%d %s", code, body)
	}
}
