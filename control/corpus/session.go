package corpus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"sigs.k8s.io/yaml"
)

var jsonForm = jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, kinds, kinds, jsonserializer.SerializerOptions{})

// Exchange is a request and its answer, normalized.
type Exchange struct {
	Name   string // what the request does, in words
	Asked  string // method and path, normalized
	Answer Answer
}

// session sends requests to one server and keeps the exchanges. After the first error its methods do nothing.
type session struct {
	ctx       context.Context
	server    Server
	exchanges []Exchange
	err       error
}

// watchTimeout bounds how long a watch may take to show the expected events.
const watchTimeout = 20 * time.Second

func (s *session) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

// send sends a request without keeping the exchange.
func (s *session) send(r Request) Answer {
	if s.err != nil {
		return Answer{}
	}
	a, err := s.server.Ask(s.ctx, r)
	s.err = err
	return a
}

// record sends a request, keeps the exchange and returns the answer as it came.
func (s *session) record(name string, r Request) Answer {
	a := s.send(r)
	if s.err == nil {
		s.keepExchange(name, r, a)
	}
	return a
}

func (s *session) keepExchange(name string, r Request, a Answer) {
	kept := a
	kept.Body = normalizeBody(contentType(a), a.Body)
	s.exchanges = append(s.exchanges, Exchange{Name: string(Normalize([]byte(name))), Asked: string(Normalize([]byte(r.Method + " " + r.Path))), Answer: kept})
}

func contentType(a Answer) string {
	for _, h := range a.Header {
		if v, ok := strings.CutPrefix(h, "Content-Type: "); ok {
			return v
		}
	}
	return ""
}

func normalizeBody(contentType string, body []byte) []byte {
	var out []byte
	var err error
	switch {
	case !strings.HasPrefix(contentType, protobufType):
		return Normalize(body)
	case strings.Contains(contentType, "stream=watch"):
		out, err = normalizeFrames(body)
	default:
		out, err = normalizeProtobuf(body)
	}
	if err != nil {
		return []byte(err.Error())
	}
	return out
}

// recordWatch reads events until want of them contain the text done, and keeps the exchange.
func (s *session) recordWatch(name string, r Request, done string, want int) {
	if s.err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, watchTimeout)
	defer cancel()
	resp, err := s.server.open(ctx, r)
	if err != nil {
		s.err = err
		return
	}
	defer resp.Body.Close()
	a := Answer{Status: resp.StatusCode, Header: headers(resp.Header)}
	buffer := make([]byte, 64<<10)
	for {
		n, err := resp.Body.Read(buffer)
		a.Body = append(a.Body, buffer[:n]...)
		if whole := wholeEvents(contentType(a), a.Body); whole >= 0 && bytes.Count(a.Body[:whole], []byte(done)) >= want {
			a.Body = a.Body[:whole]
			break
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			s.fail("%s: %s: %w after %s", name, r.Path, err, Normalize(a.Body))
			return
		}
	}
	s.keepExchange(name, r, a)
}

// wholeEvents returns how many bytes of a stream are complete events.
func wholeEvents(contentType string, body []byte) int {
	if !strings.HasPrefix(contentType, protobufType) {
		return bytes.LastIndexByte(body, '\n') + 1
	}
	at := 0
	for len(body)-at >= 4 {
		n := int(body[at])<<24 | int(body[at+1])<<16 | int(body[at+2])<<8 | int(body[at+3])
		if len(body)-at < 4+n {
			break
		}
		at += 4 + n
	}
	return at
}

// encodeAs encodes a JSON object in the form of a content type.
func (s *session) encodeAs(contentType string, object []byte) []byte {
	var out []byte
	var err error
	switch contentType {
	case protobufType:
		out, err = toProtobuf(object)
	case yamlType:
		out, err = yaml.JSONToYAML(object)
	default:
		out = object
	}
	if err != nil {
		s.fail("encode as %s: %w", contentType, err)
	}
	return out
}

// jsonField reads a field of a JSON answer.
func jsonField(body []byte, path ...string) string {
	var v any
	if json.Unmarshal(body, &v) != nil {
		return ""
	}
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	text, _ := v.(string)
	return text
}

// setField sets fields of a JSON object, path joined by dots, and returns its text.
func (s *session) setField(object []byte, path string, value any) []byte {
	var o map[string]any
	if err := json.Unmarshal(object, &o); err != nil {
		s.fail("%s: %w", object, err)
		return nil
	}
	names := strings.Split(path, ".")
	at := o
	for _, n := range names[:len(names)-1] {
		next, ok := at[n].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[n] = next
		}
		at = next
	}
	at[names[len(names)-1]] = value
	text, err := json.Marshal(o)
	if err != nil {
		s.fail("%w", err)
	}
	return text
}
