package corpus

import (
	"context"
	"fmt"
	"net/url"
)

// Questions sends the requests that are about no single kind: reviews, pages of lists, requests of a user without rights,
// and paths that are not served. It needs Setup.
func Questions(ctx context.Context, server Server) (Scenario, error) {
	s := &session{ctx: ctx, server: server}
	s.askReviews()
	s.askPages()
	s.askWithoutRights()
	s.askActions()
	if s.err != nil {
		return Scenario{}, fmt.Errorf("questions: %w", s.err)
	}
	return Scenario{Kind: "questions", Exchanges: s.exchanges}, nil
}

func (s *session) askReviews() {
	const auth, authz = "/apis/authentication.k8s.io/v1/", "/apis/authorization.k8s.io/v1/"
	spec := `"spec":{"user":"alice","groups":["g"],"extra":{"k":["v"]},"uid":"u","resourceAttributes":{"namespace":"` + Namespace + `","verb":"get","group":"apps","version":"v1","resource":"deployments","subresource":"scale","name":"d"}}`
	for _, r := range []struct{ path, group, kind, spec string }{
		{auth + "selfsubjectreviews", "authentication.k8s.io/v1", "SelfSubjectReview", ""},
		{auth + "tokenreviews", "authentication.k8s.io/v1", "TokenReview", `"spec":{"token":"` + Token + `"}`},
		{auth + "tokenreviews", "authentication.k8s.io/v1", "TokenReview", `"spec":{"token":"unknown","audiences":["a"]}`},
		{auth + "tokenreviews", "authentication.k8s.io/v1", "TokenReview", `"spec":{}`},
		{authz + "subjectaccessreviews", "authorization.k8s.io/v1", "SubjectAccessReview", spec},
		{authz + "subjectaccessreviews", "authorization.k8s.io/v1", "SubjectAccessReview", `"spec":{"groups":["system:masters"],"nonResourceAttributes":{"path":"/healthz","verb":"get"}}`},
		{authz + "subjectaccessreviews", "authorization.k8s.io/v1", "SubjectAccessReview", `"spec":{}`},
		{authz + "namespaces/" + Namespace + "/localsubjectaccessreviews", "authorization.k8s.io/v1", "LocalSubjectAccessReview", spec},
		{authz + "selfsubjectaccessreviews", "authorization.k8s.io/v1", "SelfSubjectAccessReview", `"spec":{"resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{"requirements":[{"key":"a","operator":"In","values":["b"]}]}}}`},
		{authz + "selfsubjectaccessreviews", "authorization.k8s.io/v1", "SelfSubjectAccessReview", `"spec":{"resourceAttributes":{"verb":"list","resource":"pods"},"nonResourceAttributes":{"path":"/"}}`},
		{authz + "selfsubjectrulesreviews", "authorization.k8s.io/v1", "SelfSubjectRulesReview", `"spec":{"namespace":"` + Namespace + `"}`},
	} {
		object := fmt.Sprintf(`{"apiVersion":%q,"kind":%q`, r.group, r.kind)
		if r.spec != "" {
			object += "," + r.spec
		}
		object += "}"
		for _, contentType := range []string{jsonType, yamlType, protobufType} {
			s.record("review "+r.kind+" "+r.spec+" as "+contentType, Request{
				Method: "POST", Path: r.path, ContentType: contentType, Accept: contentType, Body: s.encodeAs(contentType, []byte(object)),
			})
		}
		s.record("review "+r.kind+" "+r.spec+" of nobody", Request{
			Method: "POST", Path: r.path, ContentType: jsonType, Accept: jsonType, Body: []byte(object), As: "nobody",
		})
	}
}

func (s *session) askPages() {
	const path = "/api/v1/namespaces/" + Namespace + "/configmaps"
	for i := range 7 {
		s.send(Request{Method: "POST", Path: path, ContentType: jsonType, Accept: jsonType, Body: fmt.Appendf(nil,
			`{"metadata":{"name":"page-%d","labels":{"pages":"true","odd":"%t"}},"data":{"n":"%d"}}`, i, i%2 == 1, i)})
	}
	for _, accept := range []string{jsonType, protobufType, yamlType, jsonType + tableOf, jsonType + partialListOf} {
		for _, selector := range []string{"pages=true", "odd=true"} {
			next := ""
			for page := range 5 {
				query := "?limit=2&labelSelector=" + url.QueryEscape(selector) + "&continue=" + url.QueryEscape(next)
				s.record(fmt.Sprintf("page %d of %s as %s", page, selector, accept), Request{Method: "GET", Path: path + query, Accept: accept})
				next = jsonField(s.send(Request{Method: "GET", Path: path + query, Accept: jsonType}).Body, "metadata", "continue")
				if next == "" {
					break
				}
			}
		}
	}
	now := jsonField(s.send(Request{Method: "GET", Path: path + "?limit=1", Accept: jsonType}).Body, "metadata", "resourceVersion")
	s.send(Request{Method: "DELETE", Path: path + "/page-3", ContentType: jsonType, Body: []byte(deleteOptions)})
	for _, query := range []string{
		"resourceVersion=" + now + "&resourceVersionMatch=Exact", "resourceVersion=" + now + "&resourceVersionMatch=NotOlderThan",
		"resourceVersion=" + now, "resourceVersion=0", "resourceVersion=0&resourceVersionMatch=Exact", "resourceVersion=0&limit=2",
		"resourceVersion=" + now + "&resourceVersionMatch=Exact&limit=2", "resourceVersionMatch=Other", "limit=-1", "limit=x",
		"timeoutSeconds=x", "sendInitialEvents=true", "watch=1&sendInitialEvents=true", "resourceVersion=-1",
	} {
		s.record("list "+query, Request{Method: "GET", Path: path + "?labelSelector=pages%3Dtrue&" + query, Accept: jsonType})
	}
	for _, selector := range []string{"metadata.name!=page-1", "metadata.name=page-1,metadata.namespace=" + Namespace, "metadata.name=page-1,metadata.name=page-2", "data.n=1", "a"} {
		s.record("list by field "+selector, Request{Method: "GET", Path: path + "?labelSelector=pages%3Dtrue&fieldSelector=" + url.QueryEscape(selector), Accept: jsonType})
	}
	s.record("delete the pages", Request{Method: "DELETE", Path: path + "?labelSelector=pages%3Dtrue", ContentType: jsonType, Accept: jsonType, Body: []byte(deleteOptions)})
	s.record("delete no pages", Request{Method: "DELETE", Path: path + "?labelSelector=pages%3Dtrue", ContentType: jsonType, Accept: jsonType, Body: []byte(deleteOptions)})
}

// askWithoutRights sends requests of a user without rights, and requests of paths that are not served.
func (s *session) askWithoutRights() {
	const ns = "/api/v1/namespaces/" + Namespace
	for _, r := range []Request{
		{Method: "GET", Path: ns + "/pods"}, {Method: "GET", Path: ns + "/pods?watch=1"}, {Method: "GET", Path: ns + "/pods/a/log"},
		{Method: "GET", Path: "/api/v1/nodes/a"}, {Method: "GET", Path: "/apis/apps/v1/deployments"}, {Method: "GET", Path: "/metrics"},
		{Method: "POST", Path: ns + "/pods", ContentType: jsonType, Body: []byte(`{}`)}, {Method: "DELETE", Path: ns + "/secrets"},
		{Method: "PATCH", Path: ns + "/secrets/a", ContentType: mergePatch, Body: []byte(`{}`)}, {Method: "GET", Path: customPath},
		{Method: "GET", Path: "/nothing"}, {Method: "GET", Path: "/apis/example.com/v1/things"}, {Method: "GET", Path: "/api/v2"},
	} {
		for _, accept := range []string{jsonType, yamlType, protobufType} {
			r.Accept, r.As = accept, "nobody"
			s.record("of nobody: "+r.Method+" "+r.Path+" as "+accept, r)
		}
	}
	for _, path := range []string{
		"/nothing", "/apis/example.com/v1/things", "/api/v2", "/apis/apps/v2", "/apis/apps/v1/nothing", ns + "/nothing", "/apis/corpus.example.com/v2/widgets",
		"/apis/corpus.example.com/v1/gadgets", customPath + "/a/nothing",
	} {
		s.record("what is not served: "+path, Request{Method: "GET", Path: path, Accept: jsonType})
	}
}

// askActions sends requests of subresources that act, such as binding and eviction, on objects that do not exist.
func (s *session) askActions() {
	const ns = "/api/v1/namespaces/" + Namespace
	for _, r := range []struct{ path, body string }{
		{"/pods/none/binding", `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"none"},"target":{"kind":"Node","name":"a"}}`},
		{"/bindings", `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"none"},"target":{"kind":"Node","name":"a"}}`},
		{"/bindings", `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"none"},"target":{"kind":"Pod","name":"a"}}`},
		{"/pods/none/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"none"}}`},
		{"/pods/none/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"other"}}`},
		{"/serviceaccounts/none/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":["a"]}}`},
		{"/serviceaccounts/default/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":["a"],"expirationSeconds":5}}`},
		{"/serviceaccounts/default/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":["a"],"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"none"}}}`},
		{"/serviceaccounts/default/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":["a"],"expirationSeconds":777}}`},
		{"/pods/none/exec?command=a", ``}, {"/pods/none/attach", ``}, {"/pods/none/portforward", ``}, {"/pods/none/proxy", ``}, {"/services/none/proxy", ``},
	} {
		s.record("post "+r.path+" "+r.body, Request{Method: "POST", Path: ns + r.path, ContentType: jsonType, Accept: jsonType, Body: []byte(r.body)})
	}
	s.record("log of no pod", Request{Method: "GET", Path: ns + "/pods/none/log", Accept: jsonType})
	s.record("proxy to no node", Request{Method: "GET", Path: "/api/v1/nodes/none/proxy/", Accept: jsonType})
}
