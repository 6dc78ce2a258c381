package main

import (
	"regexp"
	"strings"
)

var (
	quantity = regexp.MustCompile(`^[0-9.]+[a-zA-Z]{0,2}$`)
	moment   = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T`)
	encoded  = regexp.MustCompile(`^[A-Za-z0-9+/]+=+$`)
)

// plausible are strings of the forms that fields have.
var plausible = []any{
	"a", "example.com/a", "a.example.com", "10.0.0.1", "10.0.0.0/24", "/a", "1", "80", "v1", "https://example.com/a",
	"TCP", "Always", "50%", "a:b", "kubernetes.io/hostname", "2001:db8::1", "true", "A", "0123456789abcdef", "runtime/default",
}

// alike are values of the type and the form of a value, for fields that want something more particular.
func alike(value any) []any {
	switch v := value.(type) {
	case nil:
		return []any{"a", 1, map[string]any{}, []any{"a"}, "/a", []any{map[string]any{}}}
	case string:
		switch {
		case quantity.MatchString(v):
			return []any{"1", "1Gi", "100m", "0", "50%"}
		case moment.MatchString(v):
			return []any{"2020-02-02T02:02:02Z", "2020-02-02T02:02:02.000002Z"}
		case encoded.MatchString(v):
			return []any{"YQ=="}
		}
		return plausible
	case float64:
		return []any{1, 0, 80, 2, 1000, 30000, 100, 2147483647}
	case bool:
		return []any{!v}
	case []any:
		return lists(v)
	case map[string]any:
		return objects(v)
	}
	return nil
}

func lists(v []any) []any {
	var out []any
	if len(v) > 1 {
		out = append(out, v[:1])
	}
	if len(v) > 0 {
		if _, texts := v[0].(string); texts {
			for _, p := range append([]any{"*", "ReadWriteOnce"}, plausible...) {
				out = append(out, []any{p})
			}
		}
	}
	return out
}

// objects are maps with other keys, or objects whose one field is another.
func objects(v map[string]any) []any {
	var out []any
	keys := sortedKeys(v)
	if len(keys) != 1 {
		return []any{map[string]any{}}
	}
	key, value := keys[0], v[keys[0]]
	if strings.HasSuffix(key, "Key") || !isText(value) {
		for _, k := range []string{"a", "cpu", "storage", "example.com/a", "pods"} {
			out = append(out, map[string]any{k: value})
		}
	}
	if isText(value) {
		for _, p := range alike(value) {
			out = append(out, map[string]any{key: p})
		}
	}
	return append(out, map[string]any{})
}

func isText(v any) bool {
	_, ok := v.(string)
	return ok
}
