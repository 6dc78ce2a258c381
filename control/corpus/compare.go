package corpus

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Difference is one place in which two documents differ.
type Difference struct {
	Document string // the name of the document
	Place    string // where in it: names joined by " > "
	Text     string // "missing", "extra", or the wanted and the actual value
}

// String is one line.
func (d Difference) String() string { return d.Document + ": " + d.Place + ": " + d.Text }

// Compare returns the places that are missing in got, that got has and want does not, and that differ.
func Compare(want, got []Document) []Difference {
	have := map[string]string{}
	for _, d := range got {
		have[d.Name()] = d.Text
	}
	var out []Difference
	for _, d := range want {
		text, ok := have[d.Name()]
		delete(have, d.Name())
		switch {
		case !ok:
			out = append(out, Difference{Document: d.Name(), Text: "missing"})
		case text != d.Text:
			out = append(out, compareJSON(d.Name(), d.Text, text)...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		out = append(out, Difference{Document: name, Text: "extra"})
	}
	return out
}

func compareJSON(name, want, got string) []Difference {
	var w, g any
	for text, v := range map[string]*any{want: &w, got: &g} {
		if err := json.Unmarshal([]byte(text), v); err != nil {
			return []Difference{{Document: name, Text: "no JSON: " + err.Error()}}
		}
	}
	c := comparison{document: name}
	c.value(nil, w, g)
	return c.out
}

type comparison struct {
	document string
	out      []Difference
}

func (c *comparison) found(at []string, format string, args ...any) {
	c.out = append(c.out, Difference{Document: c.document, Place: strings.Join(at, " > "), Text: fmt.Sprintf(format, args...)})
}

func (c *comparison) value(at []string, want, got any) {
	switch w := want.(type) {
	case map[string]any:
		if g, ok := got.(map[string]any); ok {
			c.object(at, w, g)
			return
		}
	case []any:
		if g, ok := got.([]any); ok {
			c.list(at, w, g)
			return
		}
	default:
		if want == got {
			return
		}
	}
	c.found(at, "want %s, have %s", shortJSON(want), shortJSON(got))
}

func (c *comparison) object(at []string, want, got map[string]any) {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if g, ok := got[k]; ok {
			c.value(appendPath(at, k), want[k], g)
		} else {
			c.found(appendPath(at, k), "missing: %s", shortJSON(want[k]))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[k]; !ok {
			c.found(appendPath(at, k), "extra: %s", shortJSON(got[k]))
		}
	}
}

// list compares elements by name where each element has one, else by position.
func (c *comparison) list(at []string, want, got []any) {
	w, wOrder := byName(want)
	g, gOrder := byName(got)
	if w == nil || g == nil {
		if a, b := shortJSON(want), shortJSON(got); len(want) != len(got) {
			c.found(at, "want %d elements, have %d: want %s, have %s", len(want), len(got), a, b)
			return
		}
		for i := range want {
			c.value(appendPath(at, fmt.Sprint(i)), want[i], got[i])
		}
		return
	}
	before := len(c.out)
	c.object(at, w, g)
	if len(c.out) == before && !slices.Equal(wOrder, gOrder) {
		c.found(at, "want the order %s, have %s", wOrder, gOrder)
	}
}

// namingFields are the fields that together name an element of a list.
var namingFields = []string{"name", "in", "resource", "subresource", "groupVersion", "group", "version", "kind"}

func byName(elements []any) (map[string]any, []string) {
	out, order := map[string]any{}, []string{}
	for _, e := range elements {
		name, ok := e.(string)
		if o, is := e.(map[string]any); is {
			if meta, is := o["metadata"].(map[string]any); is {
				name = fmt.Sprint(meta["name"])
			}
			for _, field := range namingFields {
				if v, is := o[field].(string); is {
					name += " " + v
				}
			}
			ok = name != ""
		}
		name = strings.TrimSpace(name)
		if _, twice := out[name]; !ok || twice {
			return nil, nil
		}
		out[name] = e
		order = append(order, name)
	}
	return out, order
}

func appendPath(at []string, name string) []string { return append(slices.Clone(at), name) }

// shortJSON returns a value as JSON in one line, cut to 160 bytes.
func shortJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	const most = 160
	if len(text) > most {
		return string(text[:most]) + "…"
	}
	return string(text)
}
