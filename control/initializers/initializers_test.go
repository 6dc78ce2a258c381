package initializers_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/balsahq/balsa/control/initializers"
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
