package limits

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/client-go/kubernetes/scheme"
)

func TestBreadthInEveryEncoding(t *testing.T) {
	const n = MaxSiblings + 1
	cm := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: map[string]string{}}
	for i := range n {
		cm.Data[fmt.Sprint("key", i)] = "{[,"
	}
	text, err := json.Marshal(cm)
	if err != nil {
		t.Fatal(err)
	}
	var plain any
	if err := json.Unmarshal(text, &plain); err != nil {
		t.Fatal(err)
	}
	cbor, err := direct.Marshal(plain)
	if err != nil {
		t.Fatal(err)
	}
	known, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	var proto strings.Builder
	if err := known.Serializer.Encode(cm, &proto); err != nil {
		t.Fatal(err)
	}
	lines := "data:\n"
	for i := range n {
		lines += fmt.Sprintf("  k%d: x\n", i)
	}
	for kind, body := range map[string]string{
		"application/json": string(text), "application/merge-patch+json": string(text), "application/json; charset=utf-8": string(text), "application/yaml": lines,
		"application/apply-patch+yaml": string(text), "application/cbor": string(cbor), runtime.ContentTypeProtobuf: proto.String(),
	} {
		if got := breadth([]byte(body), kind, scheme.Codecs); got != n {
			t.Errorf("%s: %d, want %d", kind, got, n)
		}
	}
	managers := `{"metadata":{"managedFields":[` + strings.Repeat(`{"manager":"0123456789012345678901234567890"},`, 600) + `{}]}}`
	if got := breadth([]byte(managers), "application/json", scheme.Codecs); got != 600*weightOfManagers+1 {
		t.Errorf("600 managers count for %d", got)
	}
	long := "data:\n  a: |\n" + strings.Repeat("    a line, and another\n", n)
	for kind, body := range map[string]string{"application/yaml": long, "application/json": `{"data":{"a":"` + strings.Repeat(",", 3*n) + `"}}`} {
		if got := breadth([]byte(body), kind, scheme.Codecs); got != 1 {
			t.Errorf("a long text in %s: %d, want 1", kind, got)
		}
	}
}

// What decodes as JSON has as many values side by side as were counted.
func FuzzSiblings(f *testing.F) {
	for _, s := range []string{`{}`, `[1,[2,3,4],{"a":1,"b":[]}]`, `"a,b"`, `{"a\",":"\\","b":1}`, `]`, `,,,`, `[[[[`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		n := siblings(data)
		var v any
		if json.Unmarshal(data, &v) == nil && widest(reflect.ValueOf(v)) > n {
			t.Errorf("%q: %d counted", data, n)
		}
	})
}
