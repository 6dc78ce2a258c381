package storage

import (
	"bytes"
	"encoding/json"
	"maps"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// FuzzPlace: whatever is stored, the place is found without reading beyond it, and of
// what encoding/json wrote, the text with the version in it is what it would have
// written of the object with one.
func FuzzPlace(f *testing.F) {
	for _, seed := range []string{
		`{"apiVersion":"a/v1","kind":"K","metadata":{"creationTimestamp":null,"labels":{"a":"b","c\"":"\u003cd"},"name":"n","uid":"u"},"spec":{"x":[1,2.5,{"y":"}"}]}}`,
		`{"a":{"b":["\\",{}]},"metadata":{"uid":"u"}}`,
		`{"metadata":{"labels":{},"name":"n"}}`, `{"metadata":{"resourceVersion":"1","uid":"u"}}`, `{}`, `{"a":1,"metadata":[]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		_, _ = versionOffset(text, func(_, _ []byte) {}) // does not fall
		var object map[string]any
		if json.Unmarshal(text, &object) != nil || object == nil {
			return
		}
		canonical, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		labels := map[string]string{}
		at, ok := versionOffset(canonical, func(k, v []byte) { labels[string(k)] = string(v) })
		metadata, isMap := object["metadata"].(map[string]any)
		if !ok {
			if isMap && metadata["uid"] != nil && metadata["resourceVersion"] == nil && unescaped(metadata) && unescaped(object) {
				t.Fatalf("no place in %s", canonical)
			}
			return
		}
		if !isMap {
			t.Fatalf("a place in %s, which has no metadata", canonical)
		}
		if want := (&unstructured.Unstructured{Object: object}).GetLabels(); !maps.Equal(labels, want) {
			t.Fatalf("labels %v, want %v", labels, want)
		}
		metadata["resourceVersion"] = "42"
		want, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if got := (Text{data: canonical, at: at, revision: 42}).Append(nil); !bytes.Equal(got, want) {
			t.Fatalf("%s, want %s", got, want)
		}
	})
}

// unescaped reports whether no name of m has to be escaped, and its labels are strings.
func unescaped(m map[string]any) bool {
	for name, value := range m {
		quoted, err := json.Marshal(name)
		if err != nil || len(quoted) != len(name)+2 {
			return false
		}
		if name != "labels" {
			continue
		}
		labels, ok := value.(map[string]any)
		for k, v := range labels {
			_, text := v.(string)
			ok = ok && text && unescaped(map[string]any{k: nil})
		}
		if !ok {
			return false
		}
	}
	return true
}
