package badapitest

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"sigs.k8s.io/yaml"
)

//go:embed testdata/seeds.yaml
var seedText []byte

// Content types of bodies.
const (
	jsonType, yamlType, cborType = "application/json", "application/yaml", "application/cbor"
	applyYAML, applyCBOR         = "application/apply-patch+yaml", "application/apply-patch+cbor"
	jsonPatch, mergePatch        = "application/json-patch+json", "application/merge-patch+json"
	strategicPatch               = "application/strategic-merge-patch+json"
)

const (
	perKind  = 8        // objects and messages kept per kind
	keptSize = 64 << 10 // the largest that is kept, in bytes
)

// corpus holds accepted objects and answers, by kind.
type corpus struct {
	objects  map[string][]any    // JSON
	messages map[string][][]byte // protobuf
}

// newCorpus returns a corpus with seeds: an object of each kind that is hard to generate.
func newCorpus() (*corpus, error) {
	c := &corpus{map[string][]any{}, map[string][][]byte{}}
	for _, text := range bytes.Split(seedText, []byte("\n---\n")) {
		var o map[string]any
		if err := yaml.Unmarshal(text, &o); err != nil {
			return nil, fmt.Errorf("seeds: %w", err)
		}
		kind, _ := o["kind"].(string)
		c.objects[kind] = append(c.objects[kind], o)
	}
	return c, nil
}

// keep adds an answer. Seeds are never displaced.
func (c *corpus) keep(r chance, kind, contentType string, body []byte) {
	if kind == "" || len(body) > keptSize {
		return
	}
	switch {
	case strings.HasPrefix(contentType, runtime.ContentTypeProtobuf):
		if list := c.messages[kind]; len(list) < perKind {
			c.messages[kind] = append(list, bytes.Clone(body))
		} else {
			list[r.IntN(perKind)] = bytes.Clone(body)
		}
	case strings.HasPrefix(contentType, jsonType):
		var o map[string]any
		if json.Unmarshal(body, &o) != nil || o["kind"] != kind {
			return
		}
		if list := c.objects[kind]; len(list) < perKind {
			c.objects[kind] = append(list, o)
		} else {
			list[1+r.IntN(perKind-1)] = o
		}
	}
}

// content is a body with its content type.
type content struct {
	kind string // the object's kind
	data []byte
}

// object returns an object for an operation: one accepted before, one made from its schema, one of another kind, or
// nonsense.
func (w *Wild) object(op *operation, name, namespace string) any {
	var o any
	known := w.corpus.objects[op.kind]
	if op.method == "DELETE" || op.action == "deletecollection" {
		known = nil
	}
	switch n := w.IntN(20); {
	case n < 13 && len(known) > 0:
		o = clone(pick(w.chance, known))
	case n < 18 && op.body != nil:
		o = w.build(op.schemas, op.body, "", 2+w.IntN(6))
	case n < 19:
		o = clone(pick(w.chance, w.corpus.objects[pick(w.chance, slices.Sorted(maps.Keys(w.corpus.objects)))]))
	default:
		return w.odd()
	}
	m, ok := o.(map[string]any)
	if !ok {
		return o
	}
	if op.kind != "" && !w.once(30) && op.method != "DELETE" {
		m["kind"], m["apiVersion"] = op.kind, strings.TrimPrefix(op.group+"/"+op.version, "/")
	}
	w.place(m, op, name, namespace)
	if w.once(3) {
		return o
	}
	for o = w.spoil(o); w.once(3); {
		o = w.spoil(o)
	}
	return o
}

// place gives an object the name and namespace of its request.
func (w *Wild) place(m map[string]any, op *operation, name, namespace string) {
	if op.method == "DELETE" || w.once(40) {
		return
	}
	meta, ok := m["metadata"].(map[string]any)
	if !ok {
		meta = map[string]any{}
		m["metadata"] = meta
	}
	if !w.once(20) {
		meta["name"] = name
	}
	delete(meta, "namespace")
	if namespace != "" && w.once(2) {
		meta["namespace"] = namespace
	}
	if !w.once(5) {
		for _, f := range []string{"resourceVersion", "uid", "managedFields", "deletionTimestamp", "finalizers"} {
			delete(meta, f)
		}
	}
}

// body returns a body for an operation.
func (w *Wild) body(op *operation, name, namespace string) content {
	if op.method == "PATCH" {
		return w.patch(op, name, namespace)
	}
	if list := w.corpus.messages[op.kind]; len(list) > 0 && w.once(5) {
		return content{runtime.ContentTypeProtobuf, w.maybeScramble(pick(w.chance, list))}
	}
	if w.once(15) {
		return content{runtime.ContentTypeProtobuf, w.unknown(op)}
	}
	o := w.object(op, name, namespace)
	kind := pick(w.chance, []string{jsonType, jsonType, jsonType, jsonType, yamlType, cborType})
	if w.once(20) {
		kind = pick(w.chance, []string{"application/json; charset=utf-8", "text/plain", "", "x", "application/x-www-form-urlencoded", jsonPatch})
	}
	data := encode(kind, o)
	if w.once(15) {
		data = w.scramble(data)
	}
	return content{kind, data}
}

func (w *Wild) maybeScramble(data []byte) []byte {
	if w.once(3) {
		return bytes.Clone(data)
	}
	return w.scramble(data)
}

// unknown returns a protobuf envelope with arbitrary content.
func (w *Wild) unknown(op *operation) []byte {
	raw := []byte(w.oddString())
	if list := w.corpus.messages[pick(w.chance, []string{op.kind, "ConfigMap", "Pod", "Status"})]; len(list) > 0 && w.once(2) {
		raw = w.scramble(pick(w.chance, list))
	}
	u := runtime.Unknown{Raw: raw, TypeMeta: runtime.TypeMeta{Kind: op.kind, APIVersion: strings.TrimPrefix(op.group+"/"+op.version, "/")}}
	if w.once(4) {
		u.ContentType, u.ContentEncoding = pick(w.chance, []string{jsonType, "x", runtime.ContentTypeProtobuf}), pick(w.chance, []string{"gzip", ""})
	}
	b, err := u.Marshal()
	if err != nil {
		return raw
	}
	return append([]byte("k8s\x00"), b...)
}

// encode encodes o as contentType, or as JSON if that fails.
func encode(contentType string, o any) []byte {
	text, err := json.Marshal(o)
	if err != nil {
		return []byte(err.Error())
	}
	switch contentType {
	case yamlType, applyYAML:
		if y, err := yaml.JSONToYAML(text); err == nil {
			return y
		}
	case cborType, applyCBOR:
		var plain any
		if json.Unmarshal(text, &plain) == nil {
			if b, err := direct.Marshal(plain); err == nil {
				return b
			}
		}
	}
	return text
}

// patch returns one of the four kinds of patch, sometimes with the content type of another.
func (w *Wild) patch(op *operation, name, namespace string) content {
	kind := pick(w.chance, []string{jsonPatch, mergePatch, strategicPatch, applyYAML, applyCBOR})
	said := kind
	if w.once(20) {
		said = pick(w.chance, []string{jsonPatch, mergePatch, strategicPatch, applyYAML, jsonType, "", "x"})
	}
	var o any
	switch kind {
	case jsonPatch:
		o = w.operations(op)
	case strategicPatch:
		o = w.directives(w.part(w.object(op, name, namespace)))
	case mergePatch:
		o = w.part(w.object(op, name, namespace))
	default:
		o = w.object(op, name, namespace)
	}
	data := encode(kind, o)
	if w.once(20) {
		data = w.scramble(data)
	}
	return content{said, data}
}

// part drops some fields of an object.
func (w *Wild) part(o any) any {
	if m, ok := o.(map[string]any); ok {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			switch {
			case w.once(4):
				delete(m, k)
			case w.once(10):
				m[k] = nil
			default:
				m[k] = w.part(m[k])
			}
		}
	}
	return o
}

// directives adds directives of strategic merge patches to a tree.
func (w *Wild) directives(o any) any {
	switch t := o.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(t)) {
			t[k] = w.directives(t[k])
			if list, ok := t[k].([]any); ok && w.once(3) {
				t[pick(w.chance, []string{"$setElementOrder/", "$deleteFromPrimitiveList/", "$x/", "$setElementOrder"})+k] = pick(w.chance, []any{clone(list), w.odd(), []any{map[string]any{"name": "c"}}})
			}
		}
		if w.once(5) {
			t["$patch"] = pick(w.chance, []any{"delete", "replace", "merge", "x", nil, 1, map[string]any{}})
		}
		if w.once(8) {
			t["$retainKeys"] = pick(w.chance, []any{[]any{"name", "type"}, []any{1}, nil, "x", slices.Collect(maps.Keys(map[string]any{"a": 1}))})
		}
	case []any:
		for i := range t {
			t[i] = w.directives(t[i])
		}
	}
	return o
}

// operations returns the operations of a JSON patch on fields of an object of the kind.
func (w *Wild) operations(op *operation) any {
	places := []string{"", "/", "/metadata/labels", "/metadata/labels/a~1b", "/metadata/finalizers/-", "/metadata/managedFields", "/metadata/name", "/spec", "/status", "/data/-1", "/~2", "x", "/metadata/ownerReferences/0"}
	if known := w.corpus.objects[op.kind]; len(known) > 0 {
		places = pointers(pick(w.chance, known), "", places)
	}
	out := []any{}
	for range 1 + w.IntN(6) {
		one := map[string]any{"op": pick(w.chance, []string{"add", "add", "replace", "remove", "test", "copy", "move", "x"}), "path": pick(w.chance, places)}
		if !w.once(5) {
			one["value"] = pick(w.chance, []any{w.odd(), "x", map[string]any{"a": "b"}, w.build(op.schemas, op.body, "", 2)})
		}
		if w.once(2) {
			one["from"] = pick(w.chance, places)
		}
		out = append(out, one)
	}
	if w.once(15) {
		return w.spoil(out)
	}
	return out
}

// pointers appends the JSON pointers of all values in a tree.
func pointers(o any, at string, out []string) []string {
	if len(out) > 300 {
		return out
	}
	switch t := o.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(t)) {
			p := at + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(k)
			out = pointers(t[k], p, append(out, p))
		}
	case []any:
		for i := range t {
			p := at + "/" + strconv.Itoa(i)
			out = pointers(t[i], p, append(out, p))
		}
		out = append(out, at+"/-", at+"/99999999999999999999")
	}
	return out
}

// status parses an answer that is a Status in JSON.
func status(body []byte) metav1.Status {
	var s metav1.Status
	_ = json.Unmarshal(body, &s)
	return s
}
