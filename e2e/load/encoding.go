package load

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// Encoding is an encoding of objects.
type Encoding struct {
	Name, MediaType string
	serializer      runtime.Encoder
}

// The encodings of built-in kinds.
var (
	JSON = &Encoding{"JSON", runtime.ContentTypeJSON,
		json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{})}
	Protobuf = &Encoding{"protobuf", runtime.ContentTypeProtobuf, protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)}
)

// Encode returns an object as it is sent.
func (e *Encoding) Encode(o runtime.Object) []byte {
	var out bytes.Buffer
	if err := e.serializer.Encode(o, &out); err != nil {
		panic(err) // a buffer accepts everything, and the kinds are known
	}
	return out.Bytes()
}

// Filling brings objects to about 1 KiB.
var Filling = strings.Repeat("0123456789abcdef", 64)

// stampKey is the ConfigMap key that changes with every write.
const stampKey = "at"

// ConfigMap returns an encoded object of 1 KiB and its metadata.
func (e *Encoding) ConfigMap(name, stamp string, labels map[string]string) []byte {
	return e.Encode(&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Data:       map[string]string{stampKey: stamp, "filling": Filling},
	})
}

// ConfigMapsPath returns the path of a namespace's ConfigMaps.
func ConfigMapsPath(namespace string) string {
	return "/api/v1/namespaces/" + namespace + "/configmaps"
}

// Template is an encoded object with places of fixed length to fill in, so that clients do not encode during a
// measurement.
type Template struct {
	body   []byte
	places []int
	sizes  []int
}

// NewTemplate returns a template of an encoded object that contains each mark once.
func NewTemplate(body []byte, marks ...string) (*Template, error) {
	t := &Template{body: body}
	for _, mark := range marks {
		if n := bytes.Count(body, []byte(mark)); n != 1 {
			return nil, fmt.Errorf("an object holds the mark %q %d times, not once", mark, n)
		}
		t.places = append(t.places, bytes.Index(body, []byte(mark)))
		t.sizes = append(t.sizes, len(mark))
	}
	return t, nil
}

// Fill returns the object with values in place of the marks. It panics if a value is not as long as its mark.
func (t *Template) Fill(values ...string) []byte {
	out := bytes.Clone(t.body)
	for i, v := range values {
		if len(v) != t.sizes[i] {
			panic(fmt.Sprintf("%q does not fit into %d bytes", v, t.sizes[i]))
		}
		copy(out[t.places[i]:], v)
	}
	return out
}

// StampDigits is the length of a Unix time in nanoseconds, until the year 2286.
const StampDigits = 19

// stampMarks precede the stamp: in JSON, and in protobuf (a map entry with the key as field 1 and the value as field
// 2).
var stampMarks = [][]byte{
	[]byte(`"` + stampKey + `":"`),
	append([]byte{0x0a, byte(len(stampKey))}, stampKey+"\x12"+string(rune(StampDigits))...),
}

// StampOf returns the time at which an object was written, without decoding the object.
func StampOf(frame []byte) (int64, error) {
	for _, mark := range stampMarks {
		if i := bytes.Index(frame, mark); i >= 0 && len(frame) >= i+len(mark)+StampDigits {
			return strconv.ParseInt(string(frame[i+len(mark):][:StampDigits]), 10, 64)
		}
	}
	return 0, fmt.Errorf("an event without a stamp: %q", frame[:min(len(frame), 200)])
}
