package limits_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bombs are bodies that are small to send and large to understand.
func bombs() map[string]struct {
	method, path, kind string
	body               []byte
	want               []int
} {
	type b = struct {
		method, path, kind string
		body               []byte
		want               []int
	}
	const cms, cm = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/configmaps/victim"
	const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	schemas := []byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"foos.x.example.com"},"spec":{"group":"x.example.com","scope":"Namespaced","names":{"plural":"foos","kind":"Foo"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":` +
		strings.Repeat(`{"not":`, 9000) + "{}" + strings.Repeat("}", 9000) + "}}]}}")
	deep := bytes.Repeat([]byte("["), 1<<20)
	nested := append(append([]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"n"},"x":`), bytes.Repeat([]byte(`{"a":`), 200_000)...), '1')
	laughs := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		laughs += fmt.Sprintf("%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	operations := "[" + strings.Repeat(`{"op":"test","path":"/kind","value":"ConfigMap"},`, 20_000) + `{"op":"test","path":"/kind","value":"x"}]`
	copies := `[{"op":"add","path":"/data","value":{"a":"` + strings.Repeat("x", 1000) + `"}}`
	for range 40 {
		copies += `,{"op":"copy","from":"/data","path":"/data/b"}`
	}
	return map[string]b{
		"deep JSON":               {http.MethodPost, cms, "application/json", deep, []int{400}},
		"nested JSON":             {http.MethodPost, cms, "application/json", nested, []int{400}},
		"YAML aliases":            {http.MethodPost, cms, "application/yaml", []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: y}\n" + laughs), []int{400}},
		"YAML aliases in apply":   {http.MethodPatch, cm + "?fieldManager=m", "application/apply-patch+yaml", []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: victim}\n" + laughs), []int{400}},
		"deep YAML":               {http.MethodPost, cms, "application/yaml", bytes.Repeat([]byte("["), 1<<20), []int{400}},
		"deep merge patch":        {http.MethodPatch, cm, "application/merge-patch+json", deep, []int{400}},
		"deep strategic patch":    {http.MethodPatch, cm, "application/strategic-merge-patch+json", nested, []int{400}},
		"operations of a patch":   {http.MethodPatch, cm, "application/json-patch+json", []byte(operations), []int{413}},
		"copies of a patch":       {http.MethodPatch, cm, "application/json-patch+json", []byte(copies + "]"), []int{400, 413, 422}},
		"a body beyond the limit": {http.MethodPost, cms, "application/json", bytes.Repeat([]byte(" "), 4<<20), []int{413}},
		"a schema in a schema":    {http.MethodPost, crds, "application/vnd.kubernetes.protobuf", definition(400_000), []int{400}},
		"a deep schema":           {http.MethodPost, crds, "application/vnd.kubernetes.protobuf", definition(900), []int{422}},
		"a deep schema in JSON":   {http.MethodPost, crds, "application/json", schemas, []int{400}},
		"a protobuf of lengths":   {http.MethodPost, cms, "application/vnd.kubernetes.protobuf", append([]byte("k8s\x00"), bytes.Repeat([]byte{0x0a, 0xff, 0xff, 0xff, 0x7f}, 1000)...), []int{400}},
	}
}

func TestRequestBombsAreRefusedWhileOthersAreServed(t *testing.T) {
	s := start(t)
	if _, err := s.Admin().CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "victim"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	var worst, n atomic.Int64
	others.Go(func() {
		good := s.Bearer("good")
		for ctx.Err() == nil {
			began := time.Now()
			if _, err := good.CoreV1().ConfigMaps("default").Get(ctx, "victim", metav1.GetOptions{}); err != nil && ctx.Err() == nil {
				t.Errorf("another client: %v", err)
			}
			worst.Store(max(worst.Load(), int64(time.Since(began))))
			n.Add(1)
		}
	})
	for name, b := range bombs() {
		began := time.Now()
		req, err := http.NewRequestWithContext(t.Context(), b.method, "https://"+s.Address+b.path, bytes.NewReader(b.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = bearer("bad")
		req.Header.Set("Content-Type", b.kind)
		resp, err := client(s).Do(req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !slices.Contains(b.want, resp.StatusCode) {
			t.Errorf("%s: %d %.300s, want %v", name, resp.StatusCode, text, b.want)
		}
		t.Logf("%-24s %7d bytes: %d in %v", name, len(b.body), resp.StatusCode, time.Since(began))
	}
	cancel()
	others.Wait()
	t.Logf("another client meanwhile: %d answers, the worst in %v", n.Load(), time.Duration(worst.Load()))
}

// definition is a CustomResourceDefinition in protobuf whose schema says "not" so many times.
func definition(depth int) []byte {
	field := func(n int, body []byte) []byte {
		return append(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(n<<3|2)), uint64(len(body))), body...)
	}
	schema := make([]byte, 7*depth)
	at := len(schema)
	for range depth { // from the innermost out, backwards
		head := binary.AppendUvarint(binary.AppendUvarint(nil, 28<<3|2), uint64(len(schema)-at))
		at -= len(head)
		copy(schema[at:], head)
	}
	names := slices.Concat(field(1, []byte("foos")), field(4, []byte("Foo")))
	version := slices.Concat(field(1, []byte("v1")), []byte{2 << 3, 1, 3 << 3, 1}, field(4, field(1, schema[at:])))
	spec := slices.Concat(field(1, []byte("x.example.com")), field(3, names), field(4, []byte("Namespaced")), field(7, version))
	kind := slices.Concat(field(1, []byte("apiextensions.k8s.io/v1")), field(2, []byte("CustomResourceDefinition")))
	crd := slices.Concat(field(1, field(1, []byte("foos.x.example.com"))), field(2, spec))
	return slices.Concat([]byte("k8s\x00"), field(1, kind), field(2, crd))
}
