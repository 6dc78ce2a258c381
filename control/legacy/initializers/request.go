package initializers

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

const (
	// fieldName was the name of an object's state in its metadata until Kubernetes v1.13. fieldPath is its former path,
	// and annotationPath the present one, as JSON patches write them.
	fieldName      = "initializers"
	fieldPath      = "/metadata/" + fieldName
	annotationPath = "/metadata/annotations/balsa.dev~1initializers"
	// largest bounds the bodies that are examined, in bytes; the handler refuses larger ones.
	largest = 3 << 20
)

// rewriteRequest rewrites a JSON request that writes metadata.initializers into one that writes the annotation. A body that it
// cannot parse stays unchanged; the field is then unknown, as in Kubernetes today.
func rewriteRequest(r *http.Request, current Current) *http.Request {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	rewrite := rewriter(r.Method, kind)
	if rewrite == nil {
		return r
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, largest))
	rest := io.Reader(r.Body)
	if err != nil {
		rest = failing{err}
	} else if len(body) < largest && (bytes.Contains(body, []byte(`"`+fieldName)) || bytes.Contains(body, []byte(fieldPath))) {
		if text, ok := rewrite(body, func() *State { return current(r) }); ok {
			body = text
		}
	}
	out := r.WithContext(r.Context())
	out.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), rest), r.Body}
	if r.ContentLength >= 0 && len(body) < largest {
		out.ContentLength, out.Header = int64(len(body)), r.Header.Clone()
		out.Header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	return out
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// rewrite returns a new body; false if the body does not mention initializers.
type rewrite func(body []byte, current func() *State) ([]byte, bool)

func rewriter(method, kind string) rewrite {
	switch {
	case method == http.MethodPost && kind == "application/json":
		return rewriteNew
	case method == http.MethodPut && kind == "application/json":
		return rewriteObject
	case method == http.MethodPatch && kind == string(types.MergePatchType):
		return rewritePatch(jsonpatch.MergePatch)
	case method == http.MethodPatch && kind == string(types.StrategicMergePatchType):
		return rewritePatch(func(doc, patch []byte) ([]byte, error) {
			return strategicpatch.StrategicMergePatch(doc, patch, document{})
		})
	case method == http.MethodPatch && kind == string(types.JSONPatchType):
		return rewriteOperations
	}
	return nil
}

// document is the part of an object that holds its state, for patches that are merged as in Kubernetes v1.9.
type document struct {
	Metadata struct {
		Initializers *struct {
			Pending []Name `json:"pending" patchStrategy:"merge" patchMergeKey:"name"`
			Result  any    `json:"result,omitempty"`
		} `json:"initializers,omitempty"`
	} `json:"metadata"`
}

// written is a document that mentions initializers.
type written struct {
	doc, metadata map[string]any
	field         any
}

func read(body []byte) (w written, ok bool) {
	if decode(body, &w.doc) != nil {
		return w, false
	}
	if w.metadata, ok = w.doc["metadata"].(map[string]any); !ok {
		return w, false
	}
	if w.field, ok = w.metadata[fieldName]; ok {
		delete(w.metadata, fieldName)
	}
	return w, ok
}

// annotated returns the document with value in the annotation; false removes the annotation.
func (w written) annotated(value any) ([]byte, bool) {
	annotations, ok := w.metadata["annotations"].(map[string]any)
	if !ok {
		annotations = map[string]any{}
	}
	if value == false {
		delete(annotations, Annotation)
	} else {
		annotations[Annotation] = value
	}
	w.metadata["annotations"] = annotations
	text, err := json.Marshal(w.doc)
	return text, err == nil
}

func rewriteNew(body []byte, _ func() *State) ([]byte, bool) {
	w, ok := read(body)
	if !ok {
		return nil, false
	}
	if w.field == nil {
		return w.annotated(false)
	}
	text, err := json.Marshal(w.field)
	if err != nil {
		return nil, false
	}
	return w.annotated(string(text))
}

// rewriteObject: if the field and the annotation differ, the one counts that the client has changed.
func rewriteObject(body []byte, current func() *State) ([]byte, bool) {
	w, ok := read(body)
	if !ok {
		return nil, false
	}
	if w.field == nil {
		return w.annotated(false)
	}
	text, err := json.Marshal(w.field)
	if err != nil {
		return nil, false
	}
	if annotations, _ := w.metadata["annotations"].(map[string]any); annotations[Annotation] != nil {
		said := &State{}
		if json.Unmarshal(text, said) == nil && apiequality.Semantic.DeepEqual(said, current()) {
			return w.annotated(annotations[Annotation])
		}
	}
	return w.annotated(string(text))
}

func rewritePatch(merge func(doc, patch []byte) ([]byte, error)) rewrite {
	return func(body []byte, current func() *State) ([]byte, bool) {
		w, ok := read(body)
		if !ok {
			return nil, false
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{fieldName: w.field}})
		if err != nil {
			return nil, false
		}
		after, err := merge(documentOf(current()), patch)
		if err != nil {
			return nil, false
		}
		return w.annotated(valueOf(after))
	}
}

// rewriteOperations executes the operations of a JSON patch that concern initializers, and replaces them by one
// operation.
func rewriteOperations(body []byte, current func() *State) ([]byte, bool) {
	var all, ours []map[string]any
	if decode(body, &all) != nil {
		return nil, false
	}
	about := func(path any) bool {
		text, _ := path.(string)
		return text == fieldPath || strings.HasPrefix(text, fieldPath+"/")
	}
	first := slices.IndexFunc(all, func(o map[string]any) bool { return about(o["path"]) })
	for _, o := range all {
		if about(o["from"]) || about(o["path"]) && !slices.Contains([]any{"add", "remove", "replace", "test"}, o["op"]) {
			return nil, false
		}
		if about(o["path"]) {
			ours = append(ours, o)
		}
	}
	if first < 0 {
		return nil, false
	}
	text, err := json.Marshal(ours)
	if err != nil {
		return nil, false
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		return nil, false
	}
	before := current()
	after, err := patch.Apply(documentOf(before))
	if err != nil {
		return nil, false
	}
	out := slices.DeleteFunc(slices.Clone(all), func(o map[string]any) bool { return about(o["path"]) })
	switch value := valueOf(after); {
	case value != nil:
		out = slices.Insert(out, first, map[string]any{"op": "add", "path": annotationPath, "value": value})
	case !before.Empty():
		out = slices.Insert(out, first, map[string]any{"op": "remove", "path": annotationPath})
	}
	text, err = json.Marshal(out)
	return text, err == nil
}

// documentOf returns the document of an object with a state.
func documentOf(s *State) []byte {
	metadata := map[string]any{}
	if !s.Empty() {
		metadata[fieldName] = s
	}
	text, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return []byte(`{"metadata":{}}`) // a state holds only names and a Status
	}
	return text
}

// valueOf returns the annotation for the state in a document, nil if there is none.
func valueOf(document []byte) any {
	var d struct {
		Metadata map[string]json.RawMessage `json:"metadata"`
	}
	if json.Unmarshal(document, &d) != nil {
		return nil
	}
	text := d.Metadata[fieldName]
	s := &State{}
	if len(text) == 0 || json.Unmarshal(text, s) == nil && s.Empty() {
		return nil
	}
	return string(text)
}

// decode decodes JSON; numbers keep their text.
func decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(into)
}
