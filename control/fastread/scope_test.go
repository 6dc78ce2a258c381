package fastread

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// infoOf returns the RequestInfo that is authorized for a GET.
func infoOf(t testing.TB, target string) (*request.RequestInfo, string) {
	t.Helper()
	u, err := url.ParseRequestURI(target)
	if err != nil {
		t.Skip(err)
	}
	factory := request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := factory.NewRequestInfo(&http.Request{Method: http.MethodGet, URL: u})
	if err != nil {
		t.Skip(err)
	}
	return info, u.RawQuery
}

func TestAScopeIsWhatWasAuthorizedOrThereIsNone(t *testing.T) {
	const one = "fieldSelector=metadata.name%3Da"
	for _, c := range []struct {
		target          string
		clusterScoped   bool
		namespace, name string
		none            bool
	}{
		{target: "/api/v1/pods"},
		{target: "/api/v1/namespaces/ns/pods", namespace: "ns"},
		{target: "/api/v1/namespaces/ns/pods/a", namespace: "ns", name: "a"},
		{target: "/api/v1/namespaces/ns/pods/a%2Fb", none: true},
		{target: "/api/v1/namespaces/n%73/pods/%61", namespace: "ns", name: "a"},
		{target: "/api/v1/namespaces/ns/pods?watch=1", namespace: "ns"},
		{target: "/api/v1/namespaces/ns/pods?watch=1&" + one, namespace: "ns", name: "a"},
		{target: "/api/v1/namespaces/ns/pods?" + one, none: true},
		{target: "/api/v1/namespaces/ns/pods?watch=1&fieldSelector=metadata.name%3Da,metadata.namespace%3Dns", none: true},
		{target: "/api/v1/namespaces/ns/pods?watch=1&fieldSelector=metadata.name%3Da%2Fb", none: true},
		{target: "/api/v1/namespaces/ns/pods?watch=1&fieldSelector=metadata.name%3D", none: true},
		{target: "/api/v1/namespaces/ns/pods?watch=1&fieldSelector=metadata.name%21%3Da", none: true},
		{target: "/api/v1/namespaces/ns/pods?watch=1&fieldSelector=spec.nodeName%3Da", none: true},
		{target: "/api/v1/namespaces/ns/pods?watch=1&" + one + "&fieldSelector=metadata.name%3Db", none: true},
		{target: "/api/v1/namespaces/ns/pods?watch=false&watch=true", none: true},
		{target: "/api/v1/namespaces/ns/pods?watch=1&limit=1", none: true},
		{target: "/api/v1/namespaces/ns/pods?watch=0", none: true},
		{target: "/api/v1/namespaces/ns/pods?watch=1;watch=0", none: true},
		{target: "/api/v1/namespaces/ns/pods?pretty=1", none: true},
		{target: "/api/v1/namespaces/ns/pods?limit=-1", none: true},
		{target: "/api/v1/namespaces/ns/pods?labelSelector=a&labelSelector=b", none: true},
		{target: "/api/v1/namespaces/ns/pods/a?watch=1", none: true},
		{target: "/api/v1/namespaces/ns/pods/a?labelSelector=a", none: true},
		{target: "/api/v1/namespaces/ns/pods/a/status", none: true},
		{target: "/api/v1/watch/namespaces/ns/pods?watch=1", none: true},
		{target: "/api/v1/watch/namespaces/ns/pods/a?watch=1", none: true},
		{target: "/api/v1/watch/namespaces/ns/pods/a?watch=1&" + one, none: true},
		{target: "/api/v1/namespaces//pods", none: true},
		{target: "/api/v1/namespaces/ns/pods/", none: true},
		{target: "//api/v1/pods", none: true},
		{target: "/api/v1/nodes", clusterScoped: true},
		{target: "/api/v1/nodes/a", clusterScoped: true, name: "a"},
		{target: "/api/v1/namespaces", clusterScoped: true},
		{target: "/api/v1/namespaces/ns", clusterScoped: true, name: "ns"},
		{target: "/api/v1/namespaces?watch=1&" + one, clusterScoped: true, name: "a"},
		{target: "/api/v1/namespaces/ns/nodes", clusterScoped: true, none: true},
		{target: "/api/v1/namespaces/ns/nodes/a", clusterScoped: true, none: true},
		{target: "/api/v1/namespaces/ns/nodes?watch=1", clusterScoped: true, none: true},
		{target: "/api/v1/namespaces/ns/namespaces/ns", clusterScoped: true, none: true},
		{target: "/api/v1/watch/namespaces/ns?watch=1", clusterScoped: true, none: true},
		{target: "/apis/apps/v1/namespaces/ns/deployments", namespace: "ns"},
	} {
		info, query := infoOf(t, c.target)
		s, ok := scopeOf(info, !c.clusterScoped, query)
		if ok == c.none || ok && (s.namespace != c.namespace || s.name != c.name) {
			t.Errorf("%s: %v, namespace %q, name %q; want %+v", c.target, ok, s.namespace, s.name, c)
		}
	}
}

func TestAScopeHasNoSelectorsThatAuthorizationDidNotSee(t *testing.T) {
	info, query := infoOf(t, "/api/v1/namespaces/ns/pods?watch=1&labelSelector=a%3Db&fieldSelector=metadata.name%3Da")
	if s, ok := scopeOf(info, true, query); !ok || s.options.LabelSelector.String() != "a=b" {
		t.Fatal(s, ok)
	}
	for _, change := range []func(*request.RequestInfo){
		func(i *request.RequestInfo) { i.LabelSelector = "" },
		func(i *request.RequestInfo) { i.LabelSelector = "a=c" },
		func(i *request.RequestInfo) { i.FieldSelector = "" },
		func(i *request.RequestInfo) { i.FieldSelector = "metadata.name=b" },
		func(i *request.RequestInfo) { i.Name = "b" },
		func(i *request.RequestInfo) { i.Name = "" },
		func(i *request.RequestInfo) { i.Namespace = "other" },
		func(i *request.RequestInfo) { i.Resource = "secrets" },
		func(i *request.RequestInfo) { i.Verb = "list" },
		func(i *request.RequestInfo) { i.Verb = "get" },
	} {
		other := *info
		change(&other)
		if s, ok := scopeOf(&other, true, query); ok {
			t.Errorf("%+v, and the query is %s: %+v", other, query, s)
		}
	}
}

// TestTheURLIsLookedAtInOnePlace: a part of the URL that another function reads was not compared with what was
// authorized.
func TestTheURLIsLookedAtInOnePlace(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	uses := regexp.MustCompile(`.*\.(URL|RequestURI|FormValue|Form|PathValue)\b.*`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range uses.FindAllString(string(text), -1) {
			if !strings.HasSuffix(file, "_test.go") && !strings.Contains(line, "scopeOf(info, ") {
				t.Errorf("%s: %s", file, strings.TrimSpace(line))
			}
		}
	}
}

// Upstream understands each request as this package understands it.
func FuzzScope(f *testing.F) {
	for _, q := range []string{"", "limit=5&continue=x", "labelSelector=a%3Db,c&resourceVersion=7", "resourceVersion=0&resourceVersionMatch=NotOlderThan", "limit=-1", "limit=1&limit=2",
		"watch=0", "labelSelector=", "limit=", "a;b", "%zz", "resourceVersion=x", "limit=0x1", "limit=1_0", "limit=%2B1", "labelSelector=a+in+(b)", "watch=TRUE&timeoutSeconds=5",
		"watch&fieldSelector=metadata.name=a", "watch=1&sendInitialEvents=t&resourceVersionMatch=NotOlderThan"} {
		f.Add("/api/v1/namespaces/ns/pods?"+q, true)
		f.Add("/apis/g/v1/watch/things?"+q, false)
	}
	f.Fuzz(func(t *testing.T, target string, namespaced bool) {
		info, query := infoOf(t, target)
		if !info.IsResourceRequest || parameters[info.Verb] == nil {
			return
		}
		s, ok := scopeOf(info, namespaced, query)
		if !ok {
			return
		}
		if s.name != info.Name || namespaced && s.namespace != info.Namespace || !namespaced && s.namespace != "" {
			t.Fatalf("%q: %+v of %+v", target, s, info)
		}
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatalf("%q is no query and was taken: %v", query, err)
		}
		var theirs metainternalversion.ListOptions
		if err := metainternalversionscheme.ParameterCodec.DecodeParameters(values, metav1.SchemeGroupVersion, &theirs); err != nil {
			t.Fatalf("%q: upstream says %v", query, err)
		}
		label := ""
		if theirs.LabelSelector != nil {
			label = theirs.LabelSelector.String()
		}
		opts := s.stored()
		if opts.ResourceVersion != theirs.ResourceVersion || opts.Predicate.Limit != theirs.Limit || opts.Predicate.Continue != theirs.Continue || opts.Predicate.Label.String() != label {
			t.Fatalf("%q: %+v, upstream %+v", query, opts, theirs)
		}
	})
}
