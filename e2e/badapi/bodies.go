package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"strings"
)

const (
	jsonKind, yamlKind        = "application/json", "application/yaml"
	jsonPatch, mergePatch     = "application/json-patch+json", "application/merge-patch+json"
	strategicPatch, applyKind = "application/strategic-merge-patch+json", "application/apply-patch+yaml"

	maps1       = "/api/v1/namespaces/default/configmaps"
	deployments = "/apis/apps/v1/namespaces/default/deployments"
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	policies    = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
)

// sending returns a bomb that consists of one request.
func sending(name string, s shot, want ...int) bomb {
	return bomb{name: name, want: want, clients: 4, shots: 4, fire: func(ctx context.Context, t *target, c *http.Client) (int, error) { return t.send(ctx, c, s) }}
}

// bodyBombs are requests that are small to send and large to decode.
func bodyBombs() []bomb {
	deep := bytes.Repeat([]byte("["), 1<<20)
	nested := append(append([]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"n"},"x":`), bytes.Repeat([]byte(`{"a":`), 200_000)...), '1')
	post := func(name, kind string, body []byte, want ...int) bomb {
		return sending(name, shot{method: http.MethodPost, path: maps1, kind: kind, body: body}, want...)
	}
	patch := func(name, kind string, body []byte, want ...int) bomb {
		return sending(name, shot{method: http.MethodPatch, path: victim + "?fieldManager=m", kind: kind, body: body}, want...)
	}
	return []bomb{
		post("JSON, 2^20 deep", jsonKind, deep, 400),
		post("JSON, 200,000 objects deep", jsonKind, nested, 400),
		post("YAML, 9^10 by aliases", yamlKind, []byte(head("y")+laughs()), 400),
		post("YAML, 2^20 deep", yamlKind, deep, 400),
		post("3 MiB and more", jsonKind, bytes.Repeat([]byte(" "), 4<<20), 413),
		post("a body in gzip, 100 MB within", jsonKind, zipped(100<<20), 400, 415),
		post("protobuf of lengths", "application/vnd.kubernetes.protobuf", append([]byte("k8s\x00"), bytes.Repeat([]byte{0x0a, 0xff, 0xff, 0xff, 0x7f}, 100_000)...), 400),
		post("100,000 labels", jsonKind, []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"l","labels":{`+series(100_000, `"_%d":""`)+`}}}`), 413),
		patch("JSON patch of 100,000 operations", jsonPatch, []byte("["+series(40_000, `{"op":"test","path":"/kind","value":"%d"}`)+"]"), 413),
		patch("JSON patch of copies of copies", jsonPatch, []byte(copies(200)), 400, 413, 422),
		patch("JSON patch of 9,999 moves", jsonPatch, []byte("["+series(9_999, `{"op":"add","path":"/data/k%d","value":"x"}`)+"]"), 200, 422),
		patch("merge patch, 2^20 deep", mergePatch, deep, 400),
		patch("merge patch of 100,000 keys", mergePatch, []byte(`{"metadata":{"labels":{`+series(100_000, `"_%d":"x"`)+`}}}`), 413),
		patch("strategic patch, deep", strategicPatch, nested, 400),
		patch("apply, 9^10 by aliases", applyKind, []byte(head("victim")+laughs()), 400),
		patch("apply with 20,000 managers", applyKind, []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"victim","managedFields":[`+series(20_000, `{"manager":"m%d","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{}}}`)+`]}}`), 413),
		sending("an object with 2,000 managers", shot{method: http.MethodPut, path: victim, kind: jsonKind, body: []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"victim","managedFields":[` + series(2_000, `{"manager":"m%d","operation":"Update","apiVersion":"v1","time":"2020-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:k":{}}}}`) + `]}}`)}, 413),
		sending("strategic patch of 1,000 list items", shot{method: http.MethodPatch, path: deployments + "/large", kind: strategicPatch, body: []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","env":[` + series(1_000, `{"name":"N%d","value":"x"}`) + `]}]}}}}`)}, 200, 409, 504),
	}
}

// costBombs are requests that are expensive to check, or to answer.
func costBombs() []bomb {
	selector := "a in (" + strings.TrimSuffix(strings.Repeat("bbbbbbbb,", 6_000), ",") + ")"
	return []bomb{
		sending("CEL of unbounded loops in a definition", shot{method: http.MethodPost, path: definitions, kind: jsonKind, body: definition(`"x-kubernetes-validations":[` + series(100, `{"rule":"self.l.all(a, self.l.all(b, self.l.all(c, self.l.all(d, a + b + c + d != '%d'))))"}`) + `]`)}, 422),
		sending("CEL, 20,000 deep", shot{method: http.MethodPost, path: definitions, kind: jsonKind, body: definition(`"x-kubernetes-validations":[{"rule":"` + strings.Repeat("(", 20_000) + `true` + strings.Repeat(")", 20_000) + `"}]`)}, 422),
		sending("a pattern of repeats", shot{method: http.MethodPost, path: definitions, kind: jsonKind, body: definition(`"properties":{"p":{"type":"string","pattern":"((a{100}){100}){100}"}}`)}, 422),
		sending("a schema of 20,000 properties", shot{method: http.MethodPost, path: definitions + "?dryRun=All", kind: jsonKind, body: definition(`"properties":{` + series(20_000, `"p%d":{"type":"object","properties":{"a":{"type":"string"}}}`) + `}`)}, 413),
		sending("CEL of a policy", shot{method: http.MethodPost, path: policies + "?dryRun=All", kind: jsonKind, body: []byte(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"x"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]},"validations":[{"expression":"` + strings.Repeat("[1].all(x, ", 200) + "true" + strings.Repeat(")", 200) + `"}]}}`)}, 201, 422),
		sending("10,000 conditions on labels", shot{method: http.MethodGet, path: maps1 + "?labelSelector=" + strings.Repeat("a%3Db,", 10_000) + "a"}, 400, 414),
		sending("a list with a selector of 6,000 values", shot{method: http.MethodGet, path: maps1 + "?limit=100&labelSelector=" + strings.NewReplacer(" ", "+", ",", "%2C").Replace(selector[:50_000]+")")}, 200, 400, 414),
		sending("a URL of 1 MB", shot{method: http.MethodGet, path: maps1 + "?x=" + strings.Repeat("y", 1_000_000)}, 414, 431),
		sending("an Accept header of 900 kB", shot{method: http.MethodGet, path: "/apis", header: http.Header{"Accept": {strings.Repeat("application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList,", 13_000) + "x/y"}}}, 200, 406, 431),
		sending("OpenAPI, whole", shot{method: http.MethodGet, path: "/openapi/v2"}, 200),
		sending("a list of everything as a Table", shot{method: http.MethodGet, path: maps1, header: http.Header{"Accept": {"application/json;as=Table;v=v1;g=meta.k8s.io"}}}, 200, 429),
	}
}

func head(name string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\n"
}

// laughs is the YAML of nine aliases of nine aliases of …
func laughs() string {
	out := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		out += fmt.Sprintf("%c: &%c [%s*%c]\n", c, c, strings.Repeat(fmt.Sprintf("*%c,", c-1), 8), c-1)
	}
	return out
}

// copies returns a patch in which each operation doubles an object.
func copies(n int) string {
	out := `[{"op":"add","path":"/data","value":{"a":"` + strings.Repeat("x", 1000) + `"}}`
	for range n {
		out += `,{"op":"copy","from":"/data","path":"/data/b"}`
	}
	return out + "]"
}

// series returns n numbered pieces, separated by commas.
func series(n int, piece string) string {
	var out strings.Builder
	for i := range n {
		if i > 0 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, piece, i)
	}
	return out.String()
}

func zipped(n int) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write(make([]byte, n)) // into memory: cannot fail
	_ = z.Close()
	return out.Bytes()
}

// definition returns a CustomResourceDefinition with this schema, in addition to an unbounded list.
func definition(schema string) []byte {
	if !strings.Contains(schema, `"properties"`) {
		schema += `,"properties":{"l":{"type":"array","items":{"type":"string"}}}`
	}
	return []byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"foos.x.example.com"},"spec":{"group":"x.example.com","scope":"Namespaced","names":{"plural":"foos","kind":"Foo"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object",` + schema + `}}}]}}`)
}
