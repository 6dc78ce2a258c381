package main

import (
	"regexp"
	"strconv"
	"strings"
)

// step is one step into a JSON value: a field, a key or an index.
type step = string

var inBrackets = regexp.MustCompile(`^([^\[]*)\[([^\]]*)\]`)

// parsePath reads the path of a field as validation errors have it: spec.containers[0].env, metadata.labels[a.b/c].
func parsePath(text string) []step {
	var out []step
	for text != "" {
		text = strings.TrimPrefix(text, ".")
		if m := inBrackets.FindStringSubmatch(text); m != nil && !strings.Contains(m[1], ".") {
			if m[1] != "" {
				out = append(out, m[1])
			}
			out = append(out, m[2])
			text = text[len(m[0]):]
			continue
		}
		name, rest, _ := strings.Cut(text, ".")
		if name != "" {
			out = append(out, name)
		}
		text = rest
	}
	return out
}

// at returns what is at a path.
func at(v any, path []step) (any, bool) {
	for _, s := range path {
		switch x := v.(type) {
		case map[string]any:
			next, ok := x[s]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			i, err := strconv.Atoi(s)
			if err != nil || i < 0 || i >= len(x) {
				return nil, false
			}
			v = x[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// put sets what is at a path whose parent is there, and returns the changed value.
func put(v any, path []step, value any) any {
	if len(path) == 0 {
		return value
	}
	switch x := v.(type) {
	case map[string]any:
		if next, ok := x[path[0]]; ok || len(path) == 1 {
			x[path[0]] = put(next, path[1:], value)
		}
	case []any:
		i, err := strconv.Atoi(path[0])
		switch {
		case err != nil || i < 0 || i > len(x):
		case i < len(x):
			x[i] = put(x[i], path[1:], value)
		case len(path) == 1:
			return append(x, value)
		}
	}
	return v
}

// drop takes away what is at a path, and returns the changed value.
func drop(v any, path []step) any {
	if len(path) == 0 {
		return nil
	}
	switch x := v.(type) {
	case map[string]any:
		if len(path) == 1 {
			delete(x, path[0])
		} else if next, ok := x[path[0]]; ok {
			x[path[0]] = drop(next, path[1:])
		}
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i < 0 || i >= len(x) {
			return v
		}
		if len(path) == 1 {
			return append(x[:i:i], x[i+1:]...)
		}
		x[i] = drop(x[i], path[1:])
	}
	return v
}

// join is a path as text.
func join(path []step) string { return strings.Join(path, "/") }

// clone copies a JSON value.
func clone(v any) any {
	switch x := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(x))
		for k, e := range x {
			out[k] = clone(e)
		}
		return out
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = clone(e)
		}
		return out
	}
	return v
}

// merge puts over on top of under: over wins where both have something, and a
// null in it takes away.
func merge(under, over any) any {
	switch o := over.(type) {
	case map[string]any:
		u, ok := under.(map[string]any)
		if !ok {
			return over
		}
		for k, v := range o {
			if u[k] = merge(u[k], v); v == nil {
				delete(u, k)
			}
		}
		return u
	case []any:
		u, ok := under.([]any)
		if !ok || len(o) == 0 {
			return over
		}
		for i := range o {
			if i < len(u) {
				o[i] = merge(u[i], o[i])
			}
		}
		return o
	case nil:
		return under
	}
	return over
}

// leaves counts the values that hold no others.
func leaves(v any) int {
	n := 0
	switch x := v.(type) {
	case map[string]any:
		for _, e := range x {
			n += leaves(e)
		}
	case []any:
		for _, e := range x {
			n += leaves(e)
		}
	default:
		return 1
	}
	return n
}
