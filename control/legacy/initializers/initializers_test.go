package initializers_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/balsahq/balsa/control/legacy/initializers"
)

func configuration(name string, list ...initializers.Initializer) *initializers.Configuration {
	return &initializers.Configuration{ObjectMeta: metav1.ObjectMeta{Name: name}, Initializers: list}
}

func who(name string, rules ...initializers.Rule) initializers.Initializer {
	return initializers.Initializer{Name: name, Rules: rules}
}

func of(group, version, resource string) initializers.Rule {
	return initializers.Rule{APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{resource}}
}

func TestNames(t *testing.T) {
	all := []*initializers.Configuration{
		configuration("z", who("last.example.com", of("", "v1", "pods"))),
		configuration("a",
			who("second.example.com", of("apps", "v1", "deployments"), of("", "*", "pods")),
			who("none.example.com"),
			who("first.example.com", of("*", "*", "*")),
			who("last.example.com", of("batch", "v1", "*"))),
	}
	for resource, want := range map[schema.GroupVersionResource]string{
		{Version: "v1", Resource: "pods"}:                       "second.example.com first.example.com last.example.com",
		{Version: "v2", Resource: "pods"}:                       "second.example.com first.example.com",
		{Group: "batch", Version: "v1", Resource: "jobs"}:       "first.example.com last.example.com",
		{Group: "apps", Version: "v1beta1", Resource: "others"}: "first.example.com",
	} {
		if have := strings.Join(initializers.Names(all, resource), " "); have != want {
			t.Errorf("%v: have %s, want %s", resource, have, want)
		}
	}
}

func TestStatesFollowEachOther(t *testing.T) {
	waits := initializers.Waiting([]string{"a.example.com", "b.example.com"})
	fails := &initializers.State{Result: &metav1.Status{Status: metav1.StatusFailure, Message: "no"}}
	other := &initializers.State{Result: &metav1.Status{Status: metav1.StatusFailure, Message: "yes"}}
	succeeds := &initializers.State{Result: &metav1.Status{Status: metav1.StatusSuccess}}
	for name, c := range map[string]struct {
		now, old *initializers.State
		refused  bool
	}{
		"begins to wait": {waits, nil, true}, "begins with a failure": {fails, &initializers.State{}, true},
		"goes on": {initializers.Waiting([]string{"b.example.com"}), waits, false}, "ends": {nil, waits, false}, "ends as nothing": {&initializers.State{}, waits, false},
		"waits for more": {initializers.Waiting([]string{"c.example.com", "a.example.com"}), waits, false},
		"fails":          {fails, waits, false}, "fails still": {fails, fails, false}, "fails otherwise": {other, fails, true}, "no failure": {succeeds, waits, true},
		"waits for nobody": {initializers.Waiting([]string{"short"}), waits, true}, "never waited": {nil, nil, false},
	} {
		if faults := initializers.ValidateUpdate(c.now, c.old); (len(faults) > 0) != c.refused {
			t.Errorf("%s: %v", name, faults)
		}
	}
}

func FuzzState(f *testing.F) {
	for _, seed := range []string{`{"pending":[{"name":"a.example.com"}]}`, `{}`, `{"result":{"status":"Failure"}}`, `[`, ``, `null`, `{"pending":[{}]}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		o := &metav1.ObjectMeta{Annotations: map[string]string{initializers.Annotation: text, "other": "1"}}
		s, err := initializers.Of(o)
		if err != nil {
			if initializers.Uninitialized(o) {
				t.Error("what is no state hides an object")
			}
			return
		}
		initializers.ValidateState(s)
		if err := initializers.Set(o, s); err != nil {
			t.Fatal(err)
		}
		again, err := initializers.Of(o)
		if err != nil || again.Empty() != s.Empty() || initializers.Uninitialized(o) == s.Empty() {
			t.Errorf("%q became %q: %v", text, o.Annotations[initializers.Annotation], err)
		}
	})
}

// pass gives a body to Filter and returns what the handler behind it reads.
func pass(t *testing.T, method, kind, body string, current *initializers.State) string {
	t.Helper()
	verb := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch"}[method]
	r := httptest.NewRequest(method, "/api/v1/namespaces/default/pods/p", strings.NewReader(body))
	r.Header.Set("Content-Type", kind)
	r = r.WithContext(request.WithRequestInfo(r.Context(), &request.RequestInfo{IsResourceRequest: true, Verb: verb, APIVersion: "v1", Resource: "pods", Name: "p"}))
	var have []byte
	w := httptest.NewRecorder()
	initializers.Filter(func(*http.Request) *initializers.State { return current }, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var err error
		if have, err = io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
		if r.ContentLength != int64(len(have)) {
			t.Errorf("length %d of %d", r.ContentLength, len(have))
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(have)
	})).ServeHTTP(w, r)
	return string(have)
}

func TestBodiesThatSayNothingOfInitializersStayAsTheyAre(t *testing.T) {
	for _, c := range [][3]string{
		{http.MethodPost, "application/json", `{"metadata": {"name": "initializers", "n": 1.0}}`},
		{http.MethodPost, "application/json", `{"initializers": [{"name": "a.example.com"}]}`},
		{http.MethodPost, "application/yaml", `metadata: {"initializers": {}}`},
		{http.MethodPatch, "application/json-patch+json", `[{"op": "move", "from": "/metadata/initializers", "path": "/data"}]`},
		{http.MethodPatch, "application/json-patch+json", `{"path": "/metadata/initializers"}`},
		{http.MethodPatch, "application/merge-patch+json", `{"metadata": {"initializers"`},
		{http.MethodPost, "application/json", `{"metadata": {"initializers": {}}, "data": "` + strings.Repeat("x", 4<<20) + `"}`},
	} {
		if have := pass(t, c[0], c[1], c[2], nil); have != c[2] {
			t.Errorf("%.80s became %.80s", c[2], have)
		}
	}
}

func FuzzBody(f *testing.F) {
	kinds := [][2]string{
		{http.MethodPost, "application/json"}, {http.MethodPut, "application/json"}, {http.MethodPatch, "application/merge-patch+json"},
		{http.MethodPatch, "application/strategic-merge-patch+json"}, {http.MethodPatch, "application/json-patch+json"},
	}
	for _, seed := range []string{
		`{"metadata":{"initializers":{"pending":[{"name":"a.example.com"}]},"annotations":{"balsa.dev/initializers":"{}"}}}`,
		`{"metadata":{"initializers":null}}`, `{"metadata":{"initializers":{"pending":[{"$patch":"delete","name":"a.example.com"}],"$setElementOrder/pending":[]}}}`,
		`{"metadata":{"initializers":{"$patch":"replace"},"annotations":1}}`, `{"metadata":{"initializers":{"pending":[1,{"$patch":"merge"}],"$retainKeys":["x"]}}}`,
		`[{"op":"remove","path":"/metadata/initializers/pending/0"},{"op":"add","path":"/metadata/initializers/pending/-","value":1}]`,
		`[{"op":"replace","path":"/metadata/initializers","value":{"pending":[]}}]`, `[{"op":"add","path":"/metadata/initializers/pending/99999999"}]`, `[null,{"path":"/metadata/initializers"}]`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, k := range kinds {
			for _, current := range []*initializers.State{nil, initializers.Waiting([]string{"a.example.com", "b.example.com"})} {
				if have := pass(t, k[0], k[1], body, current); json.Valid([]byte(body)) && !json.Valid([]byte(have)) {
					t.Errorf("%s %q became %q", k[1], body, have)
				}
			}
		}
	})
}
