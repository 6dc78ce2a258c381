package badapitest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// Wild generates requests.
type Wild struct {
	chance
	docs   *Documents
	corpus *corpus
	tokens []string // continue tokens from answers
}

// Request is one request.
type Request struct {
	Method, URI string
	Header      http.Header
	Body        []byte
	// Long: the answer may be endless.
	Long bool
	op   *operation
}

// Otherwise returns the same read with an equivalent Accept header for which another part of the server answers; nil if
// the request does not read an object or a list.
func (r *Request) Otherwise() *Request {
	kind := r.Header.Get("Accept")
	if r.op == nil || r.op.action != "get" && r.op.action != "list" || r.Method != http.MethodGet || r.Long {
		return nil
	}
	if _, ok := r.Header["Accept"]; len(r.Header) > 1 || len(r.Header) == 1 && !ok || kind != "" && kind != jsonType && kind != runtime.ContentTypeProtobuf {
		return nil
	}
	if kind == "" {
		kind = jsonType
	}
	again := *r
	again.Header = http.Header{"Accept": {kind + ";q=1"}}
	return &again
}

// Kind returns the kind of the request's objects.
func (r *Request) Kind() string {
	if r.op == nil {
		return ""
	}
	return r.op.kind
}

// String returns all that is needed to repeat the request by hand.
func (r *Request) String() string {
	return fmt.Sprintf("%s %.2000s\n%v\n%.4000q", r.Method, r.URI, r.Header, r.Body)
}

// New returns a Wild over docs. The same seed and the same answers give the same requests.
func New(docs *Documents, seed uint64) (*Wild, error) {
	c, err := newCorpus()
	return &Wild{chance: chance{rand.New(rand.NewPCG(seed, 5))}, docs: docs, corpus: c}, err
}

// others are paths that are in no document.
var others = []string{
	"/", "/api", "/apis", "/apis/", "/healthz", "/livez/ping", "/readyz?verbose", "/version", "/metrics", "/openapi/v2", "/openapi/v3", "/openapi/v3/apis/apps/v1", "/openapi/v3/x",
	"/debug/pprof/", "/debug/api_priority_and_fairness/dump_requests", "/debug/api_priority_and_fairness/dump_queues", "/logs", "/logs/../../etc/passwd", "/.well-known/openid-configuration", "/openid/v1/jwks",
	"/api/v1/nodes/node-1/proxy/../../x", "/api/v1/namespaces/wild/pods/a:80/proxy/x", "/api/v1/namespaces/wild/services/http:a:80/proxy/", "/api/v1/namespaces/wild/pods/a/exec?command=x&stdout=1", "/api/v1/namespaces/wild/pods/a/attach?stdin=1",
	"/api/v1/namespaces/wild/pods/a/portforward?ports=80", "/api/v1/namespaces/wild/pods/a/log?follow=1&tailLines=-1", "/api/v1/watch/namespaces/wild/configmaps", "/api/v1/proxy/namespaces/x/pods/y", "/apis/absent.example.com/v1/x", "/apis/apps/v2/x",
	"//api//v1//pods", "/api/v1/../v1/pods", "/api/v1/namespaces/wild/configmaps/a/b/c/d", "/%61pi/v1", "/api/v1/namespaces//configmaps", "*", "/api/v1/namespaces/wild/things", "/apis/wild.example.com/v1/namespaces/wild/things/a/scale", "/apis/wild.example.com/v1beta1/things",
}

// Next returns a request.
func (w *Wild) Next() *Request {
	r := &Request{Header: http.Header{}}
	if len(w.docs.operations) == 0 || w.once(25) {
		r.Method, r.URI = pick(w.chance, []string{"GET", "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE", "X"}), pick(w.chance, others)
		if r.URI == "*" {
			r.URI = "/*"
		}
		if r.Method != "GET" {
			r.Body = []byte(w.oddString())
		}
		r.Long = true
		w.headers(r)
		return r
	}
	op := &w.docs.operations[w.IntN(len(w.docs.operations))]
	r.op, r.Method = op, op.method
	if w.once(50) {
		r.Method = pick(w.chance, []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "X"})
	}
	name, namespace := w.name(), pick(w.chance, namespaces)
	if op.kind == "CustomResourceDefinition" && !w.once(5) {
		name = "things.wild.example.com"
	}
	if !strings.Contains(op.path, "{namespace}") {
		namespace = ""
	}
	path := w.fill(op.path, name, namespace)
	query := w.query(op)
	r.URI = path
	if q := query.Encode(); q != "" {
		r.URI += "?" + q
	}
	if w.once(60) {
		r.URI += pick(w.chance, []string{"/", "//", "?", "&%", "?watch=1&watch=0", "#x", "%zz", ";x", "?a=b;c=d", "/../x", "?%00"})
	}
	r.Long = long(r.URI)
	if op.body != nil && !w.once(20) || w.once(50) {
		c := w.body(op, name, namespace)
		r.Body = c.data
		if c.kind != "" {
			r.Header.Set("Content-Type", c.kind)
		}
	}
	w.headers(r)
	return r
}

func long(uri string) bool {
	for _, part := range []string{"watch", "follow", "/exec", "/attach", "/portforward", "/proxy"} {
		if strings.Contains(uri, part) {
			return true
		}
	}
	return false
}

func (w *Wild) name() string {
	if w.once(12) {
		return pick(w.chance, oddNames)
	}
	return pick(w.chance, names)
}

// fill replaces the parameters in a path.
func (w *Wild) fill(path, name, namespace string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		switch {
		case p == "{namespace}":
			if w.once(20) {
				namespace = pick(w.chance, oddNames)
			}
			parts[i] = url.PathEscape(namespace)
		case strings.HasPrefix(p, "{"):
			parts[i] = url.PathEscape(name)
			if w.once(40) {
				parts[i] = strings.ReplaceAll(name, " ", "%20") // not escaped further
			}
		}
	}
	return strings.Join(parts, "/")
}

var versions = []string{"", "0", "1", "-1", "x", "5", "100", "18446744073709551615", "18446744073709551616", "999999999999", " 1", "0x1"}

// values are candidates for the values of parameters.
var values = map[string][]string{
	"resourceVersion":      versions,
	"resourceVersionMatch": {"", "Exact", "NotOlderThan", "x"},
	"limit":                {"0", "1", "2", "500", "-1", "9223372036854775807", "9223372036854775808", "x"},
	"timeoutSeconds":       {"0", "1", "-1", "x", "9223372036854775807"},
	"watch":                {"true", "1", "false", "x", ""},
	"allowWatchBookmarks":  {"true", "false", "x"},
	"sendInitialEvents":    {"true", "false", "x"},
	"labelSelector":        {"", "app=x", "app in (x,y)", "app notin (x)", "!app", "a>1", "a<x", "app=x,app!=y", "=", "a in (", "((", ",,,", "a=b=c", "é=x", "a in ()", " app = x "},
	"fieldSelector":        {"", "metadata.name=a", "metadata.name!=a", "metadata.namespace=wild", "spec.nodeName=node-1", "status.phase=Running", "spec.s=x", "x=y", "=", "metadata.name=a,metadata.name=b", "metadata.name=a\\,b", "metadata.name"},
	"dryRun":               {"All", "", "x", "All,All"},
	"fieldManager":         {"m", "", strings.Repeat("m", 129), "\x00", "é"},
	"fieldValidation":      {"Strict", "Warn", "Ignore", "x", ""},
	"force":                {"true", "false", "x"},
	"pretty":               {"true", "1", "x"},
	"propagationPolicy":    {"Orphan", "Background", "Foreground", "x"},
	"gracePeriodSeconds":   {"0", "1", "-1", "x", "9223372036854775807"},
	"orphanDependents":     {"true", "x"},
	"continue":             {"x", "e30", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhXHUwMDAwIn0", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiLi4vLi4ifQ", "%"},
	"tailLines":            {"-1", "0", "x"},
	"container":            {"c", "i", "x", ""},
	"command":              {"x"},
	"ports":                {"80", "-1", "x"},
	"path":                 {"x", "../..", "//"},
	"includeObject":        {"None", "Metadata", "Object", "x"},
}

func (w *Wild) query(op *operation) url.Values {
	q := url.Values{}
	for _, name := range op.query {
		if w.once(8) {
			q.Set(name, w.parameter(name))
		}
		if w.once(200) {
			q.Add(name, w.parameter(name))
		}
	}
	if w.once(25) {
		q.Set(w.oddString(), w.oddString())
	}
	if op.action == "deletecollection" && !w.once(10) {
		q.Set("dryRun", "All")
	}
	return q
}

func (w *Wild) parameter(name string) string {
	if name == "continue" && len(w.tokens) > 0 && !w.once(3) {
		token := pick(w.chance, w.tokens)
		if w.once(3) {
			token = string(w.scramble([]byte(token)))
		}
		return token
	}
	if from := values[name]; from != nil && !w.once(12) {
		return pick(w.chance, from)
	}
	return w.oddString()
}

var accepts = []string{
	jsonType, jsonType, runtime.ContentTypeProtobuf, yamlType, cborType, "*/*", "text/plain", "x", ";;;", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v1beta1;g=meta.k8s.io",
	"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
	"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/json;as=X;v=v1;g=x", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "application/cbor;as=Table;v=v1;g=meta.k8s.io",
	"application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch", "application/cbor-seq", "application/json;q=0", strings.Repeat("a/b;q=0.1,", 500) + jsonType, "application/yaml;as=Table;v=v1;g=meta.k8s.io", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
}

func (w *Wild) headers(r *Request) {
	switch w.IntN(6) {
	case 0:
		r.Header.Set("Accept", pick(w.chance, accepts))
	case 1:
		r.Header.Set("Accept", runtime.ContentTypeProtobuf)
	case 2:
		r.Header.Set("Accept", jsonType)
	}
	if w.once(20) {
		r.Header.Set(pick(w.chance, []string{"Accept-Encoding", "Content-Encoding", "Range", "If-None-Match", "If-Modified-Since", "Traceparent", "X-Forwarded-For", "Origin", "Upgrade", "Connection", "Audit-Id",
			"Impersonate-User", "Impersonate-Group", "Impersonate-Extra-X%zz", "Impersonate-Uid", "X-Stream-Protocol-Version", "Sec-Websocket-Protocol", "User-Agent", "Content-Type", "Expect", "Transfer-Encoding"}),
			pick(w.chance, []string{"gzip", "x", "bytes=0-10", "bytes=-99999999999999999999", "websocket", "SPDY/3.1", "*", "100-continue", "\"x\"", "system:masters", "v5.channel.k8s.io", "curl/8", strings.Repeat("h", 9000)}))
		if r.Header.Get("Upgrade") != "" {
			r.Header.Set("Connection", "Upgrade")
		}
	}
}

// Answered keeps parts of an answer for later requests.
func (w *Wild) Answered(r *Request, code int, header http.Header, body []byte) {
	if code >= 300 || r.op == nil {
		return
	}
	w.corpus.keep(w.chance, r.op.kind, header.Get("Content-Type"), body)
	if at := bytes.Index(body[:min(len(body), 2000)], []byte(`"continue":"`)); at >= 0 {
		token, _, ok := bytes.Cut(body[at+len(`"continue":"`):], []byte(`"`))
		if ok && len(token) > 0 && len(w.tokens) < 100 {
			w.tokens = append(w.tokens, string(token))
		}
	}
}
