package apis

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// forward lets next answer, and converts the answer.
func (c call) forward(w http.ResponseWriter, r *http.Request) error {
	if info, ok := apirequest.RequestInfoFrom(r.Context()); ok && info.Verb == "watch" {
		events := &events{ResponseWriter: w, mapping: c.mapping}
		c.next.ServeHTTP(responsewriter.WrapForHTTP1Or2(events), r)
		_, _ = w.Write(events.line) // an error, which does not end with a new line
		return nil
	}
	a := c.ask(w.Header(), r)
	data, err := c.answer(a)
	if err != nil {
		return err
	}
	w.Header().Del("Content-Length")
	w.WriteHeader(a.status)
	_, _ = w.Write(data) // the client is gone
	return nil
}

// ask returns what next answers, with its headers in header.
func (c call) ask(header http.Header, r *http.Request) *recorded {
	a := &recorded{header: header, status: http.StatusOK}
	c.next.ServeHTTP(a, r)
	return a
}

// answer is a recorded answer in the old version.
func (c call) answer(a *recorded) ([]byte, error) {
	if !strings.HasPrefix(a.header.Get("Content-Type"), runtime.ContentTypeJSON) {
		return a.body.Bytes(), nil
	}
	return c.object(a.body.Bytes())
}

// object returns an object or a list of the served version in the old one, and anything else, such as a Status or a
// Table, as it is.
func (m *mapping) object(data []byte) ([]byte, error) {
	var is metav1.TypeMeta
	if json.Unmarshal(data, &is) != nil || is.APIVersion != m.served.String() {
		return data, nil
	}
	return m.toOld(data)
}

// recorded holds an answer.
type recorded struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *recorded) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *recorded) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter.
func (a *recorded) Write(p []byte) (int, error) { return a.body.Write(p) }

// events converts a watch: JSON, an event a line.
type events struct {
	http.ResponseWriter
	*mapping
	line []byte // not ended yet
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (e *events) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// Write implements http.ResponseWriter. An event that cannot be converted ends the watch.
func (e *events) Write(p []byte) (int, error) {
	e.line = append(e.line, p...)
	for {
		line, rest, ended := bytes.Cut(e.line, []byte("\n"))
		if !ended {
			return len(p), nil
		}
		event, err := e.event(line)
		if err != nil {
			return 0, err
		}
		if _, err := e.ResponseWriter.Write(append(event, '\n')); err != nil {
			return 0, err
		}
		e.line = append([]byte(nil), rest...)
	}
}

func (e *events) event(line []byte) ([]byte, error) {
	event := struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}{}
	if err := json.Unmarshal(line, &event); err != nil || event.Type == "" {
		return line, nil // an error of the handler: text or a Status
	}
	var err error
	if event.Object, err = e.object(event.Object); err != nil {
		return nil, err
	}
	return json.Marshal(event)
}
