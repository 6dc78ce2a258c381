package corpus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// CompareScenarios compares the answers byte for byte. Answers that differ and can be decoded are then compared field by field, so
// that the differences are shown and not the whole answers.
func CompareScenarios(want, got Scenario) []Difference {
	var out []Difference
	at := func(e Exchange) string { return want.Kind + ": " + e.Name }
	for i, w := range want.Exchanges {
		if i >= len(got.Exchanges) {
			out = append(out, Difference{Document: at(w), Text: "missing: the scenario ends before it"})
			break
		}
		g := got.Exchanges[i]
		if g.Name != w.Name || g.Asked != w.Asked {
			out = append(out, Difference{Document: at(w), Place: w.Asked, Text: "the scenario continues with another request: " + g.Name + ", " + g.Asked})
			break
		}
		out = append(out, compareAnswers(at(w), w.Answer, g.Answer)...)
	}
	if n := len(want.Exchanges); len(got.Exchanges) > n {
		out = append(out, Difference{Document: at(got.Exchanges[n]), Text: "extra: the scenario continues"})
	}
	return out
}

func compareAnswers(name string, want, got Answer) []Difference {
	var out []Difference
	if want.Status != got.Status {
		out = append(out, Difference{Document: name, Place: "status", Text: fmt.Sprintf("want %d, have %d", want.Status, got.Status)})
	}
	if !slices.Equal(want.Header, got.Header) {
		out = append(out, Difference{Document: name, Place: "header", Text: fmt.Sprintf("want %q, have %q", want.Header, got.Header)})
	}
	if bytes.Equal(want.Body, got.Body) {
		return out
	}
	fields := compareBodies(name, answerValues(want), answerValues(got))
	if len(fields) == 0 {
		w, g := firstDifference(want.Body, got.Body)
		fields = []Difference{{Document: name, Place: "bytes", Text: fmt.Sprintf("want %q, have %q", w, g)}}
	}
	return append(out, fields...)
}

func compareBodies(name string, want, got []any) []Difference {
	c := comparison{document: name}
	if len(want) != len(got) {
		c.found(nil, "want %d objects, have %d: want %s, have %s", len(want), len(got), shortJSON(want), shortJSON(got))
		return c.out
	}
	for i := range want {
		var at []string
		if len(want) > 1 {
			at = []string{fmt.Sprint(i)}
		}
		c.value(at, want[i], got[i])
	}
	return c.out
}

// answerValues returns the objects of an answer: one, or the events of a watch.
func answerValues(a Answer) []any {
	text := toReadable(contentType(a), a.Body)
	if strings.HasPrefix(contentType(a), yamlType) {
		if again, err := yaml.YAMLToJSON(text); err == nil {
			text = again
		}
	}
	var out []any
	decoder := json.NewDecoder(bytes.NewReader(text))
	for decoder.More() {
		var v any
		if decoder.Decode(&v) != nil {
			return append(out, string(text))
		}
		out = append(out, v)
	}
	return out
}

// firstDifference returns the parts of two texts around their first difference.
func firstDifference(want, got []byte) (w, g string) {
	n := 0
	for n < len(want) && n < len(got) && want[n] == got[n] {
		n++
	}
	from := max(0, n-40)
	return string(want[from:min(len(want), n+80)]), string(got[from:min(len(got), n+80)])
}
