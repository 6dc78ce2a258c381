package control

import (
	"errors"
	"net/http"
	"testing"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestOnlyNamesOfObjectsMakeAPath(t *testing.T) {
	core := apirequest.RequestInfo{APIPrefix: "api", APIVersion: "v1", Namespace: "ns", Resource: "pods"}
	roles := apirequest.RequestInfo{APIPrefix: "apis", APIGroup: "rbac.authorization.k8s.io", APIVersion: "v1", Resource: "clusterroles"}
	namespaces := apirequest.RequestInfo{APIPrefix: "api", APIVersion: "v1", Namespace: "ns", Resource: "namespaces"}
	elsewhere := core
	elsewhere.Namespace = ".."
	for _, c := range []struct {
		info       apirequest.RequestInfo
		name, want string // want is "" when the path is refused
	}{
		{core, "web-0", "/api/v1/namespaces/ns/pods/web-0"},
		{core, "..web", "/api/v1/namespaces/ns/pods/..web"},
		{roles, "system:node", "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node"},
		{namespaces, "ns", "/api/v1/namespaces/ns"},
		{core, ".", ""}, {core, "..", ""}, {core, "../secrets/key", ""}, {core, "web-0/log", ""}, {core, "%2e%2e", ""},
		{elsewhere, "web-0", ""},
	} {
		got, err := objectPath(&c.info, c.name)
		if got != c.want || errors.Is(err, errNoObjectName) != (c.want == "") {
			t.Errorf("%q in %q: %q, %v", c.name, c.info.Namespace, got, err)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTheServerReadsNoOtherPathForAName(t *testing.T) {
	var read []string
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://server", Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		read = append(read, r.URL.Path)
		return nil, errors.New("no server")
	})})
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{client: client}
	for _, name := range []string{"..", ".", "../secrets/key", "web-0"} {
		info := &apirequest.RequestInfo{APIPrefix: "api", APIVersion: "v1", Namespace: "ns", Resource: "pods", Name: name}
		r, err := http.NewRequestWithContext(apirequest.WithRequestInfo(t.Context(), info), http.MethodGet, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if state := s.waitingFor(r); state != nil {
			t.Errorf("%s waits for %+v", name, state)
		}
	}
	if len(read) != 1 || read[0] != "/api/v1/namespaces/ns/pods/web-0" {
		t.Errorf("the server has read %q", read)
	}
}
