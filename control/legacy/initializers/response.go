package initializers

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// most bounds the answers that are held to add metadata.initializers, in bytes; larger ones have only the annotation.
const most = 32 << 20

// rewriteResponse wraps the answer to a request that may read objects that are not initialized. JSON objects in it get
// metadata.initializers beside the annotation. done has to be called when the handler has returned.
func rewriteResponse(w http.ResponseWriter, r *http.Request, info *request.RequestInfo) (shown http.ResponseWriter, as *http.Request, done func()) {
	one := slices.Contains([]string{"get", "create", "update", "patch", "delete"}, info.Verb)
	many := (info.Verb == "list" || info.Verb == "watch") && included(r.Context())
	if !one && !many || info.Subresource != "" && info.Subresource != "status" || r.Header.Get("Upgrade") != "" {
		return w, r, func() {}
	}
	as = r.WithContext(r.Context())
	as.Header = r.Header.Clone()
	as.Header.Del("Accept-Encoding") // nothing can be added to a compressed answer
	s := &responseWriter{ResponseWriter: w, watch: info.Verb == "watch"}
	return responsewriter.WrapForHTTP1Or2(s), as, s.done
}

// rewriteMode is the way in which an answer is passed on.
type rewriteMode int

const (
	unknown rewriteMode = iota
	through             // unchanged
	whole               // changed once it is complete
	lines               // changed line by line; each line is a document
)

// responseWriter is the answer to one request. One goroutine uses it.
type responseWriter struct {
	http.ResponseWriter
	watch bool
	mode  rewriteMode
	code  int
	held  []byte
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (s *responseWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (s *responseWriter) WriteHeader(code int) {
	if s.mode != unknown {
		return
	}
	h := s.Header()
	switch {
	case !strings.HasPrefix(h.Get("Content-Type"), "application/json") || h.Get("Content-Encoding") != "":
		s.mode = through
	case s.watch && code == http.StatusOK:
		s.mode = lines
	default:
		s.mode = whole
	}
	s.code = code
	if s.mode != whole {
		s.ResponseWriter.WriteHeader(code)
	}
}

// Write implements http.ResponseWriter.
func (s *responseWriter) Write(p []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	if s.mode == whole && len(s.held)+len(p) > most {
		s.ResponseWriter.WriteHeader(s.code)
		s.mode = through
		if _, err := s.ResponseWriter.Write(s.held); err != nil {
			return 0, err
		}
		s.held = nil
	}
	if s.mode == through {
		return s.ResponseWriter.Write(p)
	}
	s.held = append(s.held, p...)
	for s.mode == lines {
		end := bytes.IndexByte(s.held, '\n') + 1
		if end == 0 {
			break
		}
		if _, err := s.ResponseWriter.Write(completed(s.held[:end])); err != nil {
			return 0, err
		}
		if s.held = s.held[end:]; len(s.held) == 0 {
			s.held = nil
		}
	}
	return len(p), nil
}

func (s *responseWriter) done() {
	if s.mode == whole {
		s.Header().Del("Content-Length")
		s.ResponseWriter.WriteHeader(s.code)
	}
	if len(s.held) > 0 {
		_, _ = s.ResponseWriter.Write(completed(s.held)) // an error means that the client has left
	}
}

// completed returns a document (an object, a list, a table or an event) with the field beside the annotation.
func completed(text []byte) []byte {
	var doc map[string]any
	if !bytes.Contains(text, []byte(Annotation)) || decode(text, &doc) != nil || !complete(doc) {
		return text
	}
	out, err := json.Marshal(doc)
	if bytes.HasPrefix(text, []byte("{\n")) { // indented
		out, err = json.MarshalIndent(doc, "", "  ")
	}
	if err != nil {
		return text
	}
	return append(out, '\n')
}

// complete adds the field wherever it belongs in a document; it returns false if it belongs nowhere.
func complete(doc map[string]any) (added bool) {
	for _, name := range []string{"items", "rows"} {
		list, _ := doc[name].([]any)
		for _, e := range list {
			if o, ok := e.(map[string]any); ok && complete(o) {
				added = true
			}
		}
	}
	if o, ok := doc["object"].(map[string]any); ok && complete(o) { // in an event, or in a row of a table
		added = true
	}
	metadata, _ := doc["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	if text, ok := annotations[Annotation].(string); ok {
		s, err := Of(&metav1.ObjectMeta{Annotations: map[string]string{Annotation: text}})
		if err == nil && !s.Empty() {
			metadata[fieldName], added = s, true
		}
	}
	return added
}
