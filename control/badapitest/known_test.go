package badapitest_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/balsahq/balsa/control/badapitest"
)

// TestWhatWasFoundIsRefused sends requests that once broke something, and checks the answers.
func TestWhatWasFoundIsRefused(t *testing.T) {
	x := start(t)
	cm := func(meta string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"found"` + meta + `}}`
	}
	const maps, json = "/api/v1/namespaces/default/configmaps", "application/json"
	if code, _, body := x.send(ask(http.MethodPost, maps, json, cm(""))); code != http.StatusCreated {
		t.Fatalf("%d %s", code, body)
	}
	var labels strings.Builder
	for i := range 10_001 {
		fmt.Fprintf(&labels, `"l%d":"",`, i)
	}
	for name, c := range map[string]struct {
		r    *badapitest.Request
		want int
	}{
		"a namespace that is a path":           {ask(http.MethodGet, "/api/v1/namespaces/../pods", "", ""), 400},
		"one in a list":                        {ask(http.MethodGet, "/apis/apps/v1/namespaces/./deployments", "", ""), 400},
		"one that is written to":               {ask(http.MethodPost, "/api/v1/namespaces/%252e/configmaps", json, cm("")), 400},
		"a watch from no version":              {ask(http.MethodGet, maps+"?watch=1&resourceVersion=x", "", ""), 400},
		"an object with a version, to create":  {ask(http.MethodPost, maps, json, cm(`,"resourceVersion":"7"`)), 400},
		"an object with no version, to update": {ask(http.MethodPut, maps+"/found", json, cm(`,"resourceVersion":"10%"`)), 400},
		"a binding to nothing":                 {ask(http.MethodPost, "/api/v1/namespaces/default/pods/p/binding", json, `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"p"}}`), 422},
		"a custom resource in protobuf":        {ask(http.MethodPost, "/apis/settings.k8s.io/v1alpha1/namespaces/default/podpresets", "application/vnd.kubernetes.protobuf", "k8s\x00"), 415},
		"one that is replaced":                 {ask(http.MethodPut, "/apis/settings.k8s.io/v1alpha1/namespaces/default/podpresets/p", "application/vnd.kubernetes.protobuf", "x"), 415},
		"a map of many entries":                {ask(http.MethodPost, maps, json, cm(`,"labels":{`+strings.TrimSuffix(labels.String(), ",")+`}`)), 413},
	} {
		if code, _, body := x.send(c.r); code != c.want {
			t.Errorf("%s: %d %.300s, want %d", name, code, body, c.want)
		}
	}
	for _, p := range x.panics.take() {
		t.Error(p)
	}
}

// TestAJobIsReadInOneWay: a Job takes labels from its template when it is decoded, not when it is created.
func TestAJobIsReadInOneWay(t *testing.T) {
	x := start(t)
	const jobs, json = "/apis/batch/v1/namespaces/default/jobs", "application/json"
	job := `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"j"},"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"x"}]}}}}`
	if code, _, body := x.send(ask(http.MethodPost, jobs, json, job)); code != http.StatusCreated {
		t.Fatalf("%d %s", code, body)
	}
	one, other := ask(http.MethodGet, jobs+"/j", "", ""), ask(http.MethodGet, jobs+"/j", "", "")
	one.Header.Set("Accept", json)
	other.Header.Set("Accept", json+";q=1")
	_, _, a := x.send(one)
	_, _, b := x.send(other)
	if !bytes.Equal(a, b) || !bytes.Contains(a, []byte(`"labels":{"batch.kubernetes.io/controller-uid"`)) {
		t.Errorf("%s\n%s", a, b)
	}
}

func ask(method, uri, kind, body string) *badapitest.Request {
	r := &badapitest.Request{Method: method, URI: uri, Header: http.Header{}, Body: []byte(body)}
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	return r
}
