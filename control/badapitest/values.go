package badapitest

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// chance makes random choices; the same seed gives the same choices.
type chance struct{ *rand.Rand }

// once returns true one time in n.
func (c chance) once(n int) bool { return c.IntN(n) == 0 }

func pick[T any](c chance, from []T) T { return from[c.IntN(len(from))] }

// Names for objects, which may collide.
var (
	names      = []string{"a", "b", "c", "wild", "default", "kubernetes", "things.wild.example.com", "system:masters", "cluster-admin", "v1.apps", "v1.wild.example.com", "node-1"}
	oddNames   = []string{"", ".", "..", "%2e%2e", "A", "a/b", "a%2Fb", "-", "é", "%00", "%", strings.Repeat("n", 254), strings.Repeat("n", 5000), "a\nb", "status", "*", "a b", "\xff"}
	namespaces = []string{"wild", "wild", "wild", "wild", "default", "kube-system", "kube-public", "absent"}
)

// strange are unusual values of every JSON type.
var strange = []any{
	nil, true, false, "", "x", " ", "\x00", "\xff\xfe", "-1", "0", "null", "a=b", "*", "/", "..", "{{.}}", "$(X)", "${X}", "1Gi", "1e308", "-0.5m", "100%", "8080", "http",
	"10.0.0.1", "::1", "10.0.0.0/8", "::/0", "256.1.1.1", "2020-01-01T00:00:00Z", "9999-99-99", "true", "self.x", "[1,2].all(x, x > 0)", "object.metadata.name",
	0, 1, -1, 0.5, -0.5, 65536, json.Number("2147483648"), json.Number("9223372036854775807"), json.Number("9223372036854775808"), json.Number("-9223372036854775809"),
	json.Number("1e400"), json.Number("1e-400"), json.Number("123456789012345678901234567890"), []any{}, map[string]any{}, []any{nil}, []any{[]any{[]any{}}}, map[string]any{"": nil},
	map[string]any{"a": map[string]any{"a": map[string]any{"a": 1}}}, []any{"a", "a", "b"}, []any{1, "a", nil, map[string]any{}},
}

// odd returns a strange value.
func (c chance) odd() any { return clone(pick(c, strange)) }

// oddString returns a long string or one of unusual bytes.
func (c chance) oddString() string {
	switch c.IntN(6) {
	case 0:
		return strings.Repeat("x", 1<<c.IntN(17))
	case 1:
		return strings.Repeat(pick(c, []string{"(", "[", "{", "a,", "!", "..", "/", "a=b,", "\\", "%", "é", "\x00"}), 1+c.IntN(600))
	case 2:
		b := make([]byte, c.IntN(40))
		for i := range b {
			b[i] = byte(c.Uint32())
		}
		return string(b)
	default:
		return pick(c, oddNames)
	}
}

// likely are plausible strings for a property name.
var likely = map[string][]string{
	"name":       names,
	"namespace":  namespaces,
	"kind":       {"Pod", "ConfigMap", "Deployment", "Thing", "User", "ServiceAccount", "Role", "ClusterRole"},
	"apiGroup":   {"", "apps", "rbac.authorization.k8s.io", "wild.example.com"},
	"apiGroups":  {"", "apps", "*", "wild.example.com"},
	"apiVersion": {"v1", "apps/v1", "wild.example.com/v1", "x/y/z"},
	"resources":  {"pods", "configmaps", "things", "*", "pods/exec", "*/*"},
	"verbs":      {"get", "list", "create", "*", "impersonate", "escalate"},
	"verb":       {"get", "list", "create", "*"},
	"operations": {"CREATE", "UPDATE", "DELETE", "CONNECT", "*"},
	"key":        {"a", "example.com/k", "kubernetes.io/hostname", "node.kubernetes.io/not-ready"},
	"expression": {"true", "1/0 == 1", "self.spec.n > 0", "object.metadata.name == 'a'", "has(self.x)", "self.all(x, x.all(y, y != y))", "request.userInfo.username", "'a'.matches('(a+)+$')", "("},
	"rule":       {"self == oldSelf", "self.n > 0", "self.exists(x, true)", "1"},
	"protocol":   {"TCP", "UDP", "SCTP", "X"},
	"clusterIP":  {"None", "", "10.96.0.1", "10.96.7.7", "10.0.0.1", "fd00::1"},
	"type":       {"ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "object", "string", "integer", "array", "RollingUpdate", "Opaque", "kubernetes.io/tls", "Container"},
	"image":      {"x", "a/b:c", "registry.example.com/x@sha256:00"},
	"url":        {"https://127.0.0.1:1/x", "http://x", "https://[::1]:1"},
	"path":       {"/x", "../..", ".spec.x", "/"},
	"scope":      {"Namespaced", "Cluster", "*"},
	"operator":   {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Equal"},
	"username":   {"system:masters", "jane", ""},
	"signerName": {"kubernetes.io/kube-apiserver-client", "example.com/x"},
}

// build returns a value that fits a schema.
func (c chance) build(all schemas, s *spec.Schema, name string, depth int) any {
	s = all.resolve(s)
	if s == nil || c.once(60) {
		return c.odd()
	}
	if len(s.Enum) > 0 && !c.once(10) {
		return pick(c, s.Enum)
	}
	if variants := append(slices.Clone(s.OneOf), s.AnyOf...); len(variants) > 0 {
		v := pick(c, variants)
		return c.build(all, &v, name, depth)
	}
	kind := "object"
	if len(s.Type) > 0 {
		kind = s.Type[0]
	}
	switch kind {
	case "array":
		out := []any{}
		for range []int{0, 1, 1, 1, 2, 3}[c.IntN(6)] {
			if depth > 0 && s.Items != nil {
				out = append(out, c.build(all, s.Items.Schema, name, depth-1))
			}
		}
		return out
	case "integer", "number":
		return pick(c, []any{0, 1, 1, 2, 3, 10, 80, 443, 8080, 30000, -1, 100, 65535, json.Number("2147483647")})
	case "boolean":
		return c.once(2)
	case "string":
		return c.text(s.Format, name)
	}
	return c.object(all, s, depth)
}

func (c chance) object(all schemas, s *spec.Schema, depth int) any {
	out := map[string]any{}
	if s.AdditionalProperties != nil && depth > 0 {
		for range c.IntN(3) {
			out[pick(c, []string{"a", "b", "cpu", "memory", "example.com/x", "app"})] = c.build(all, s.AdditionalProperties.Schema, "", depth-1)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		required := slices.Contains(s.Required, name)
		if required && c.once(25) || !required && (depth <= 0 || !c.once(max(2, len(s.Properties)/4))) {
			continue
		}
		p := s.Properties[name]
		out[name] = c.build(all, &p, name, depth-1)
	}
	return out
}

func (c chance) text(format, name string) string {
	switch format {
	case "date-time":
		return pick(c, []string{"2020-01-01T00:00:00Z", "2020-01-01T00:00:00.000001Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "x"})
	case "byte":
		return pick(c, []string{"", "YQ==", "AAAA", "=", "LS0tLS1CRUdJTg=="})
	}
	if from := likely[name]; from != nil && !c.once(10) {
		return pick(c, from)
	}
	if c.once(8) {
		return c.oddString()
	}
	return pick(c, []string{"a", "b", "x", "a-b", "default", "1", "1Gi", "100m", "10.0.0.1", "10%", "app=x", "2020", "Always", "v1", "example.com/x", "TCP", "Retain"})
}

// spoil changes one value in a tree and returns the tree.
func (c chance) spoil(v any) any {
	switch t := v.(type) {
	case map[string]any:
		keys := slices.Sorted(maps.Keys(t))
		if len(keys) == 0 || c.once(8) {
			t[pick(c, []string{"x", "", "metadata", "spec", "status", "kind", "$patch", "a.b", "items", "data"})] = c.odd()
			return t
		}
		k := pick(c, keys)
		if c.once(5) {
			delete(t, k)
			return t
		}
		t[k] = c.spoil(t[k])
		return t
	case []any:
		if len(t) == 0 {
			return append(t, c.odd())
		}
		i := c.IntN(len(t))
		switch c.IntN(5) {
		case 0:
			return slices.Delete(t, i, i+1)
		case 1:
			for range 1 + c.IntN(4) {
				t = append(t, clone(t[i]))
			}
			return t
		}
		t[i] = c.spoil(t[i])
		return t
	case string:
		if c.once(3) {
			return c.oddString()
		}
	}
	return c.odd()
}

// clone copies a tree.
func clone(v any) any {
	switch t := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(t))
		for k, v := range t {
			out[k] = clone(v)
		}
		return out
	case []any:
		out := make([]any, len(t))
		for i := range t {
			out[i] = clone(t[i])
		}
		return out
	}
	return v
}

// scramble changes bytes of an encoding.
func (c chance) scramble(b []byte) []byte {
	b = slices.Clone(b)
	for range 1 + c.IntN(4) {
		if len(b) == 0 {
			return []byte{byte(c.Uint32())}
		}
		at := c.IntN(len(b))
		switch c.IntN(4) {
		case 0:
			b[at] ^= 1 << c.IntN(8)
		case 1:
			b = b[:at]
		case 2:
			b = slices.Insert(b, at, byte(c.Uint32()))
		case 3:
			to := min(len(b), at+1+c.IntN(30))
			b = slices.Insert(b, at, b[at:to]...)
		}
	}
	return b
}
