package corpus_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/balsahq/balsa/control/corpus"
)

// allowedDifferences are the answers that are meant to differ from upstream's.
var allowedDifferences = []corpus.Allowed{
	{
		Line:   `v1 services: create what is there.*`,
		Reason: "a Service that exists is refused because it exists; upstream asks for its address first, which is taken: by itself",
	}, {
		Line:   `v1 services: create with.*(message|field): want .*`,
		Reason: "a dry run here asks for the addresses too; upstream's asks for the ports alone",
	}, {
		Line:   `.*: list from the future: (header|details > retryAfterSeconds): .*`,
		Reason: "upstream says to ask again in a second; here it is known that nobody has written that version",
	}, {
		Line:   `v1 namespaces: create with a bad name and label: (details > causes > [0-9]+ > )?message: .*`,
		Reason: "the order of labels is that of a map, there and here", Sometimes: true,
	}, {
		Line:   `.*: watch at a bad version: .*`,
		Reason: "upstream answers a version that is no number with 500; it is the client's fault, and a list says so",
	}, {
		Line: `(v1 (nodes|persistentvolumes|persistentvolumeclaims|pods|podtemplates)|apps/v1 (daemonsets|deployments|replicasets)|` +
			`batch/v1 cronjobs|coordination.k8s.io/v1 leases|resource.k8s.io/v1 [a-z]+|` +
			`storage.k8s.io/v1 (csi[a-z]+|volumeatt[a-z]+)): (create|apply: the whole object).*: header: want .*, have .*Warning: 299 .*`,
		Reason: "fields and kinds that have no effect here are named in a warning (control/fields)",
	}, {
		Line: `(apiextensions.k8s.io|apiregistration.k8s.io|flowcontrol.apiserver.k8s.io)/v1 [a-z]+: .*` +
			`(status|managedFields|finalizers|generation|conditions|cells|watch everything|: want [0-9]+ objects|an unknown field: ).*`,
		Reason: "the server's own controllers write the status of these when they come to it", Sometimes: true,
	},
}

// allowedQuestionDifferences are those of the questions that are about no one kind.
var allowedQuestionDifferences = []corpus.Allowed{
	{
		Line:   `questions: list resourceVersion=RV&limit=2: .*`,
		Reason: "upstream's watch cache gives all of them where any version will do; here a limit is one",
	}, {
		Line:   `questions: post /bindings .*"kind":"Pod".*`,
		Reason: "upstream answers a target that is no node with 500; it is the client's fault",
	},
	{
		Line:   `questions: review SelfSubjectRulesReview .*[rR]ules.*`,
		Reason: "the order of rules is that of a map, there and here", Sometimes: true,
	},
}

func TestObjectsLiveAsUpstreams(t *testing.T) {
	var kinds []corpus.Kind
	var scenarios []corpus.Scenario
	for file, v := range map[string]any{"objects": &kinds, "scenarios": &scenarios} {
		if err := corpus.Load("testdata/"+file+".zst", v); err != nil {
			t.Fatal(err)
		}
	}
	if len(kinds) < 55 || len(kinds) != len(scenarios) {
		t.Fatalf("%d kinds and %d scenarios are recorded", len(kinds), len(scenarios))
	}
	server := startServer(t)
	if err := corpus.Setup(t.Context(), server); err != nil {
		t.Fatal(err)
	}
	found, exchanges := runScenarios(t, server, kinds, scenarios)
	left, idle := corpus.FilterAllowed(found, allowedDifferences)
	for _, d := range left {
		t.Error(d)
	}
	for _, a := range idle {
		t.Errorf("allowed and not found any more: %s (%s)", a.Line, a.Reason)
	}
	t.Logf("%d kinds, %d exchanges, %d meant to differ", len(kinds), exchanges, len(found)-len(left))
}

func TestQuestionsAreAnsweredAsUpstreams(t *testing.T) {
	var want corpus.Scenario
	if err := corpus.Load("testdata/questions.zst", &want); err != nil {
		t.Fatal(err)
	}
	server := startServer(t)
	if err := corpus.Setup(t.Context(), server); err != nil {
		t.Fatal(err)
	}
	got, err := corpus.Questions(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	left, idle := corpus.FilterAllowed(corpus.CompareScenarios(want, got), allowedQuestionDifferences)
	for _, d := range left {
		t.Error(d)
	}
	for _, a := range idle {
		t.Errorf("allowed and not found any more: %s (%s)", a.Line, a.Reason)
	}
}

// runAlone are kinds whose objects change what is answered about others.
var runAlone = []string{"limitranges", "resourcequotas", "priorityclasses", "namespaces", "runtimeclasses", "storageclasses"}

// runScenarios leads every object through its life, several at a time, and returns where the server says otherwise.
func runScenarios(t *testing.T, server corpus.Server, kinds []corpus.Kind, scenarios []corpus.Scenario) (found []corpus.Difference, exchanges int) {
	told := make([][]corpus.Difference, len(kinds))
	counts := make([]int, len(kinds))
	tell := func(i int) {
		got, err := corpus.RunScenario(t.Context(), server, kinds[i])
		if err != nil {
			t.Error(err)
			return
		}
		told[i], counts[i] = corpus.CompareScenarios(scenarios[i], got), len(got.Exchanges)
	}
	byResource := map[string][]int{} // one after the other: they are listed together
	for i, k := range kinds {
		if slices.Contains(runAlone, k.Resource) {
			tell(i)
		} else {
			byResource[k.Resource] = append(byResource[k.Resource], i)
		}
	}
	var g errgroup.Group
	g.SetLimit(4)
	for _, resource := range slices.Sorted(maps.Keys(byResource)) {
		g.Go(func() error {
			for _, i := range byResource[resource] {
				tell(i)
			}
			return nil
		})
	}
	_ = g.Wait() // what failed is said
	for i := range kinds {
		found, exchanges = append(found, told[i]...), exchanges+counts[i]
	}
	return found, exchanges
}

// A comparison that sees nothing would let everything pass.
func TestComparisonSeesOneChangedByte(t *testing.T) {
	say := func(body, contentType string) corpus.Scenario {
		return corpus.Scenario{Kind: "v1 things", Exchanges: []corpus.Exchange{{
			Name: "get", Asked: "GET /x", Answer: corpus.Answer{Status: 200, Header: []string{"Content-Type: " + contentType}, Body: []byte(body)},
		}}}
	}
	const json = "application/json"
	for _, c := range []struct{ name, want, have, says string }{
		{"a value", `{"a":{"b":1}}`, `{"a":{"b":2}}`, "a > b: want 1, have 2"},
		{"a field too many", `{"a":1}`, `{"a":1,"b":2}`, "b: extra"},
		{"the order of fields", `{"a":1,"b":2}`, `{"b":2,"a":1}`, "bytes"},
		{"white space", `{"a":1}`, `{"a":1}` + "\n", "bytes"},
		{"an element", `{"l":[1,2]}`, `{"l":[1]}`, "want 2 elements, have 1"},
	} {
		found := corpus.CompareScenarios(say(c.want, json), say(c.have, json))
		if len(found) == 0 || !strings.Contains(found[0].String(), c.says) {
			t.Errorf("%s: found %v, want %q", c.name, found, c.says)
		}
	}
	if found := corpus.CompareScenarios(say("{}", json), say("{}", json)); len(found) > 0 {
		t.Errorf("the same: %v", found)
	}
	if found := corpus.CompareScenarios(say("{}", json), say("{}", "application/yaml")); len(found) != 1 {
		t.Errorf("another content type: %v", found)
	}
}
