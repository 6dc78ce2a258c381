package corpus_test

import (
	"strings"
	"testing"

	"github.com/balsahq/balsa/control/corpus"
)

// saysOtherwise are the answers that are meant to differ from upstream's.
var saysOtherwise = []corpus.Allowed{}

func TestObjectsLiveAsUpstreams(t *testing.T) {
	var kinds []corpus.Kind
	var stories []corpus.Story
	for file, v := range map[string]any{"objects": &kinds, "stories": &stories} {
		if err := corpus.Load("testdata/"+file+".zst", v); err != nil {
			t.Fatal(err)
		}
	}
	if len(kinds) < 55 || len(kinds) != len(stories) {
		t.Fatalf("%d kinds and %d stories are recorded", len(kinds), len(stories))
	}
	server := here(t)
	if err := corpus.Setup(t.Context(), server); err != nil {
		t.Fatal(err)
	}
	var found []corpus.Difference
	exchanges := 0
	for i, k := range kinds {
		got, err := corpus.Script(t.Context(), server, k)
		if err != nil {
			t.Error(err)
			continue
		}
		exchanges += len(got.Exchanges)
		found = append(found, corpus.CompareStories(stories[i], got)...)
	}
	left, idle := corpus.Sift(found, saysOtherwise)
	for _, d := range left {
		t.Error(d)
	}
	for _, a := range idle {
		t.Errorf("allowed and not found any more: %s (%s)", a.Line, a.Reason)
	}
	t.Logf("%d kinds, %d exchanges, %d meant to differ", len(kinds), exchanges, len(found)-len(left))
}

// A comparison that sees nothing would let everything pass.
func TestComparisonSeesOneChangedByte(t *testing.T) {
	say := func(body, contentType string) corpus.Story {
		return corpus.Story{Kind: "v1 things", Exchanges: []corpus.Exchange{{
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
		found := corpus.CompareStories(say(c.want, json), say(c.have, json))
		if len(found) == 0 || !strings.Contains(found[0].String(), c.says) {
			t.Errorf("%s: found %v, want %q", c.name, found, c.says)
		}
	}
	if found := corpus.CompareStories(say("{}", json), say("{}", json)); len(found) > 0 {
		t.Errorf("the same: %v", found)
	}
	if found := corpus.CompareStories(say("{}", json), say("{}", "application/yaml")); len(found) != 1 {
		t.Errorf("another content type: %v", found)
	}
}
