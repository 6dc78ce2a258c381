package control

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/meta"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	apitesting "k8s.io/kubernetes/pkg/api/testing"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/kinds"
	"github.com/balsahq/balsa/raftstore"
)

// unserved assembles a server on an empty store in memory, for requests that do not wait for it to be ready.
func unserved(t testing.TB) *Server {
	t.Helper()
	store, err := raftstore.Open(raftstore.Config{InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	authority, err := pki.Open(pki.Config{Dir: t.TempDir(), IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, ServiceIP: net.IPv4(10, 96, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Store: store, PKI: authority, AdvertiseAddress: netip.MustParseAddr("192.0.2.1"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// apart is where two answers part.
func apart(here, there []byte) string {
	i := 0
	for i < len(here) && i < len(there) && here[i] == there[i] {
		i++
	}
	around := func(b []byte) []byte { return b[max(0, i-60):min(len(b), i+100)] }
	return fmt.Sprintf("here %q\nupstream %q", around(here), around(there))
}

// fromStoredBytes asks for path from stored bytes; answered is false if such requests are left to k8s.io/apiserver.
func (s *Server) fromStoredBytes(t testing.TB, path, accept string) (here *httptest.ResponseRecorder, r *http.Request, answered bool) {
	t.Helper()
	factory := apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	r = httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Accept", accept)
	info, err := factory.NewRequestInfo(r)
	if err != nil {
		t.Fatal(err)
	}
	here = httptest.NewRecorder()
	answered = true
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { answered = false })
	s.fastReader.Before(next).ServeHTTP(here, r.WithContext(apirequest.WithRequestInfo(r.Context(), info)))
	return here, r, answered
}

// both asks for path from stored bytes and by way of k8s.io/apiserver.
func (s *Server) both(t testing.TB, path, accept string) (here, there *httptest.ResponseRecorder, answered bool) {
	t.Helper()
	here, r, answered := s.fromStoredBytes(t, path, accept)

	sign := "?"
	if r.URL.RawQuery != "" {
		sign = "&"
	}
	// Upstream ignores what it does not know, and we leave such requests to upstream.
	out, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://balsa"+path+sign+"nobody-knows=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	out.Header.Set("Accept", accept)
	answer, err := s.Client(Identity{User: "admin", Groups: []string{"system:masters"}}).Transport.RoundTrip(out)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	there = httptest.NewRecorder()
	there.Code = answer.StatusCode
	there.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
	if _, err := io.Copy(there.Body, answer.Body); err != nil {
		t.Fatal(err)
	}
	return here, there, answered
}

// corpus writes n objects of every kind that is answered from stored bytes, made by upstream's fuzzers, straight into the
// store, and calls fn with where they are.
func (s *Server) corpus(t *testing.T, n int, fn func(gvr schema.GroupVersionResource, namespaced bool, names []string)) {
	seed := rand.NewSource(1)
	fill := fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, apitesting.FuzzerFuncs), seed, legacyscheme.Codecs)
	s.set.Each(func(row *kinds.Row, gv schema.GroupVersion, store *genericregistry.Store) {
		gvr := gv.WithResource(row.Resource)
		root := "/apis/" + gvr.Group
		if gvr.Group == "" {
			root = "/api"
		}
		if _, _, answered := s.fromStoredBytes(t, root+"/"+gvr.Version+"/"+gvr.Resource, "application/vnd.kubernetes.protobuf"); !answered {
			return
		}
		var names, keys []string
		for i := range n {
			name := fmt.Sprintf("o-%d", i)
			obj := row.Types.New()
			fill.Fill(obj)
			m, err := meta.Accessor(obj)
			if err != nil {
				t.Fatal(err)
			}
			m.SetName(name)
			m.SetNamespace("")
			ctx := t.Context()
			if row.Strategy.NamespaceScoped() {
				m.SetNamespace("ns")
				ctx = apirequest.WithNamespace(ctx, "ns")
			}
			m.SetResourceVersion("")
			m.SetLabels(map[string]string{"odd": fmt.Sprint(i % 2), "app": name})
			data, err := runtime.Encode(store.Storage.Codec, defaulted(t, store.Storage.Codec, obj))
			if err != nil {
				t.Fatal(gvr, err)
			}
			var stored runtime.Unknown
			if err := stored.Unmarshal(data[len("k8s\x00"):]); err != nil || stored.APIVersion != gv.String() {
				return // stored in another version
			}
			key, err := store.KeyFunc(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, keyPrefix+key)
			if _, err := s.cfg.Store.Txn(t.Context(), raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpPut, Key: keyPrefix + key, Value: data}}}); err != nil {
				t.Fatal(err)
			}
			names = append(names, name)
		}
		fn(gvr, row.Strategy.NamespaceScoped(), names)
		for _, key := range keys {
			if _, err := s.cfg.Store.Txn(t.Context(), raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpDelete, Key: key}}}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// defaulted is obj as it is after it came in by a request.
func defaulted(t *testing.T, codec runtime.Codec, obj runtime.Object) runtime.Object {
	t.Helper()
	data, err := runtime.Encode(codec, obj)
	if err != nil {
		t.Fatal(err)
	}
	out, err := runtime.Decode(codec, data)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestStoredBytesAnswerAsUpstreamDoes(t *testing.T) {
	s := unserved(t)
	kinds := 0
	s.corpus(t, 3, func(gvr schema.GroupVersionResource, namespaced bool, names []string) {
		kinds++
		base := "/apis/" + gvr.Group + "/" + gvr.Version
		if gvr.Group == "" {
			base = "/api/" + gvr.Version
		}
		paths := []string{base + "/" + gvr.Resource, base + "/" + gvr.Resource + "?limit=2", base + "/" + gvr.Resource + "?labelSelector=odd%3D0&resourceVersion=0"}
		one := base + "/" + gvr.Resource
		if namespaced {
			one = base + "/namespaces/ns/" + gvr.Resource
			paths = append(paths, one, base+"/namespaces/other/"+gvr.Resource)
		}
		for _, name := range names {
			paths = append(paths, one+"/"+name)
		}
		for _, path := range paths {
			for _, accept := range []string{"application/json", runtime.ContentTypeProtobuf} {
				for range 2 { // made, and remembered
					here, there, answered := s.both(t, path, accept)
					switch {
					case !answered && gvr.Resource == "statefulsets" && accept == "application/json": // claims name their kind
					case !answered:
						t.Errorf("%s as %s: left to upstream", path, accept)
					case there.Code != http.StatusOK || here.Code != there.Code || here.Header().Get("Content-Type") != there.Header().Get("Content-Type"):
						t.Errorf("%s: %d %s, upstream %d %s", path, here.Code, here.Header(), there.Code, there.Header())
					case !bytes.Equal(here.Body.Bytes(), there.Body.Bytes()):
						t.Errorf("%s as %s differs:\n%s", path, accept, apart(here.Body.Bytes(), there.Body.Bytes()))
						return
					}
				}
			}
		}
	})
	for _, path := range []string{"/api/v1/pods?resourceVersion=1&resourceVersionMatch=Exact", "/api/v1/pods?continue=nonsense&limit=1",
		"/api/v1/namespaces/none/pods/none", "/api/v1/pods?limit=-1", "/api/v1/pods?labelSelector=%3D%3D%3D", "/api/v1/pods?resourceVersion=x"} {
		for _, accept := range []string{"application/json", runtime.ContentTypeProtobuf} {
			if here, there, answered := s.both(t, path, accept); answered && (here.Code != there.Code || !bytes.Equal(here.Body.Bytes(), there.Body.Bytes())) {
				t.Errorf("%s: %d %q, upstream %d %q", path, here.Code, here.Body, there.Code, there.Body)
			}
		}
	}
	if kinds < 40 {
		t.Errorf("only %d kinds are answered from stored bytes", kinds)
	}
}

// BenchmarkList is a list of 10,000 pods through authentication and all, in the process: from stored bytes, and by way of
// k8s.io/apiserver.
func BenchmarkList(b *testing.B) {
	s := unserved(b)
	store := s.set.Store("", "pods")
	for i := range 10000 {
		pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("web-7d4b9c-%05d", i), Namespace: "default", Labels: map[string]string{"app": "web", "pod-template-hash": "7d4b9c"},
		}, Spec: core.PodSpec{Containers: []core.Container{{
			Name: "c", Image: "registry.example/web:1.2.3", Env: []core.EnvVar{{Name: "A", Value: "b"}}, TerminationMessagePolicy: core.TerminationMessageReadFile,
		}}, NodeName: "n", RestartPolicy: core.RestartPolicyAlways}}
		data, err := runtime.Encode(store.Storage.Codec, pod)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.cfg.Store.Txn(b.Context(), raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpPut, Key: "/registry/pods/default/" + pod.Name, Value: data}}}); err != nil {
			b.Fatal(err)
		}
	}
	transport := s.Client(Identity{User: "admin", Groups: []string{"system:masters"}}).Transport
	for _, way := range []string{"stored", "upstream"} {
		for _, accept := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
			b.Run(way+"/"+accept, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					path := "http://balsa/api/v1/pods?resourceVersion=0"
					if way == "upstream" {
						path += "&nobody-knows=1"
					}
					r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, path, nil)
					if err != nil {
						b.Fatal(err)
					}
					r.Header.Set("Accept", accept)
					answer, err := transport.RoundTrip(r)
					if err != nil {
						b.Fatal(err)
					}
					n, err := io.Copy(io.Discard, answer.Body)
					if err != nil || answer.StatusCode != http.StatusOK {
						b.Fatal(answer.Status, err)
					}
					answer.Body.Close()
					b.SetBytes(n)
				}
			})
		}
	}
}
