package control

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/balsahq/balsa/raftstore"
)

// stream is an answer that goes on, as far as it has come.
type stream struct {
	header http.Header
	code   int

	mu      sync.Mutex
	changed *sync.Cond
	body    []byte // guarded by mu
	flushed int    // bytes; guarded by mu
}

func newStream() *stream {
	s := &stream{header: http.Header{}}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// Header implements http.ResponseWriter.
func (s *stream) Header() http.Header { return s.header }

// WriteHeader implements http.ResponseWriter.
func (s *stream) WriteHeader(code int) { s.code = code }

// Write implements http.ResponseWriter.
func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.body = append(s.body, b...)
	return len(b), nil
}

// Flush implements http.Flusher.
func (s *stream) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushed = len(s.body)
	s.changed.Broadcast()
}

// CloseNotify implements http.CloseNotifier, without which wrappers do not flush.
func (s *stream) CloseNotify() <-chan bool { return make(chan bool) }

// until returns what was sent and flushed up to the n-th event with a mark in it.
func (s *stream) until(t *testing.T, mark string, n int) []byte {
	t.Helper()
	late := time.AfterFunc(time.Minute, func() { s.mu.Lock(); s.flushed = -1; s.mu.Unlock(); s.changed.Broadcast() })
	defer late.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for bytes.Count(s.body[:max(s.flushed, 0)], []byte(mark)) < n {
		if s.flushed < 0 {
			t.Fatalf("%d times %q did not come; there is %q", n, mark, s.body)
		}
		s.changed.Wait()
	}
	return bytes.Clone(s.body[:s.flushed])
}

// agreed is what two streams have sent and flushed, when that is the same; after a while, also when it is not. An event may
// come in pieces.
func agreed(here, there *stream) (got, want []byte) {
	sent := func(s *stream) []byte {
		s.mu.Lock()
		defer s.mu.Unlock()
		return bytes.Clone(s.body[:max(s.flushed, 0)])
	}
	for end := time.Now().Add(10 * time.Second); ; <-time.After(time.Millisecond) {
		if got, want = sent(here), sent(there); bytes.Equal(got, want) || time.Now().After(end) {
			return got, want
		}
	}
}

// bothWatches watches path from stored bytes and by way of k8s.io/apiserver, until the context ends. The first is nil if
// it was left to the other.
func (s *Server) bothWatches(ctx context.Context, t *testing.T, path, accept string) (here, there *stream) {
	t.Helper()
	factory := apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	r.Header.Set("Accept", accept)
	info, err := factory.NewRequestInfo(r)
	if err != nil {
		t.Fatal(err)
	}
	here, there = newStream(), newStream()
	left := make(chan bool, 1)
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { left <- true })
	go s.fastReader.Before(next).ServeHTTP(here, r.WithContext(apirequest.WithRequestInfo(ctx, info)))
	out, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://balsa"+path+"&nobody-knows=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	out.Header.Set("Accept", accept)
	answer, err := s.Client(Identity{User: "admin", Groups: []string{"system:masters"}}).Transport.RoundTrip(out)
	if err != nil {
		t.Fatal(err)
	}
	there.code, there.header = answer.StatusCode, answer.Header
	go func() {
		defer answer.Body.Close()
		for piece := make([]byte, 4096); ; {
			n, err := answer.Body.Read(piece)
			_, _ = there.Write(piece[:n])
			there.Flush()
			if err != nil {
				return
			}
		}
	}()
	select {
	case <-left:
		return nil, there
	default:
		return here, there
	}
}

// relabel writes the stored object at key with other labels.
func (s *Server) relabel(t *testing.T, codec runtime.Codec, key string, labels map[string]string) {
	t.Helper()
	kv := s.cfg.Store.View().Get(key)
	obj, err := runtime.Decode(codec, kv.Value)
	if err != nil {
		t.Fatal(err)
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	m.SetLabels(labels)
	data, err := runtime.Encode(codec, defaulted(t, codec, obj))
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, raftstore.Op{Type: raftstore.OpPut, Key: key, Value: data})
}

func (s *Server) write(t *testing.T, op raftstore.Op) {
	t.Helper()
	if _, err := s.cfg.Store.Txn(t.Context(), raftstore.Txn{Success: []raftstore.Op{op}}); err != nil {
		t.Fatal(err)
	}
}

// disturb does to three objects whatever a watch may have to tell of, and returns a revision before it: they change, come
// into a selection, leave it, go and come back.
func (s *Server) disturb(t *testing.T, codec runtime.Codec, keys []string) (since int64) {
	t.Helper()
	since = s.cfg.Store.View().Get(keys[0]).ModRevision - 1
	s.relabel(t, codec, keys[0], map[string]string{"odd": "1", "app": "changed"})
	s.relabel(t, codec, keys[1], map[string]string{"app": "<&>"})
	gone := s.cfg.Store.View().Get(keys[2]).Value
	s.write(t, raftstore.Op{Type: raftstore.OpDelete, Key: keys[2]})
	s.write(t, raftstore.Op{Type: raftstore.OpPut, Key: keys[2], Value: gone})
	s.relabel(t, codec, keys[2], map[string]string{"odd": "0", "app": "the-last"})
	return since
}

// TestWatchesOfStoredBytesAreAsUpstreams: whatever happens to objects of every kind, a watch from stored bytes says the
// same, byte for byte, as one by way of k8s.io/apiserver: from the past, from the beginning, and of a selection.
func TestWatchesOfStoredBytesAreAsUpstreams(t *testing.T) {
	s := unserved(t)
	kinds := 0
	s.corpus(t, 3, func(gvr schema.GroupVersionResource, namespaced bool, names []string) {
		if len(names) < 3 {
			return
		}
		kinds++
		store := s.set.Store(gvr.Group, gvr.Resource)
		base, ctx := "/apis/"+gvr.Group+"/"+gvr.Version, t.Context()
		if gvr.Group == "" {
			base = "/api/" + gvr.Version
		}
		if namespaced {
			base, ctx = base+"/namespaces/ns", apirequest.WithNamespace(ctx, "ns")
		}
		var keys []string
		for _, name := range names {
			key, err := store.KeyFunc(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, keyPrefix+key)
		}
		since := s.disturb(t, store.Storage.Codec, keys)
		path := base + "/" + gvr.Resource + "?watch=true&timeoutSeconds=60&"
		for _, c := range []struct {
			query, last string
			times       int
		}{
			{fmt.Sprintf("resourceVersion=%d", since), "the-last", 1},
			{fmt.Sprintf("resourceVersion=%d&allowWatchBookmarks=true&labelSelector=odd%%3D0", since), "the-last", 1},
			{fmt.Sprintf("resourceVersion=%d&labelSelector=odd%%3D1", since), "DELETED", 1},
			{"resourceVersion=0", "the-last", 1},
			{"allowWatchBookmarks=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "initial-events-end", 1},
			{"allowWatchBookmarks=true&fieldSelector=metadata.name%3D" + names[2] + fmt.Sprintf("&resourceVersion=%d", since), "the-last", 1},
		} {
			for _, accept := range []string{"application/json", runtime.ContentTypeProtobuf} {
				if gvr.Resource == "statefulsets" && accept == "application/json" {
					continue // claims name their kind
				}
				ctx, cancel := context.WithCancel(t.Context())
				here, there := s.bothWatches(ctx, t, path+c.query, accept)
				if here == nil {
					t.Errorf("%s %s: left to upstream", path+c.query, accept)
					cancel()
					continue
				}
				there.until(t, c.last, c.times)
				here.until(t, c.last, c.times)
				got, want := agreed(here, there)
				cancel()
				if !bytes.Equal(got, want) {
					t.Errorf("%s as %s differs:\n%s", path+c.query, accept, apart(got, want))
					return
				}
				if here.code != there.code || here.header.Get("Content-Type") != there.header.Get("Content-Type") {
					t.Errorf("%s: %d %s, upstream %d %s", path, here.code, here.header, there.code, there.header)
				}
			}
		}
	})
	if kinds < 40 {
		t.Errorf("only %d kinds are watched from stored bytes", kinds)
	}
}

// TestAWatchThatCannotBeServedSaysSo: an error is an event, as upstream's is but for how long to wait.
func TestAWatchThatCannotBeServedSaysSo(t *testing.T) {
	s := unserved(t)
	const path = "/api/v1/namespaces/ns/pods?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=1000000000000"
	here, there := s.bothWatches(t.Context(), t, path, "application/json")
	if here == nil {
		t.Fatal("left to upstream")
	}
	but := regexp.MustCompile(`[0-9]+`)
	got, want := here.until(t, "}\n", 1), there.until(t, "}\n", 1)
	if string(but.ReplaceAll(got, nil)) != string(but.ReplaceAll(want, nil)) || !bytes.Contains(got, []byte(`"type":"ERROR"`)) {
		t.Error(apart(got, want))
	}
}

// TestWatchesOfStoredBytesAreLeftToUpstreamWhenInDoubt: what is wrong, or not known here, is not answered here.
func TestWatchesOfStoredBytesAreLeftToUpstreamWhenInDoubt(t *testing.T) {
	s := unserved(t)
	for _, query := range []string{"resourceVersion=nonsense", "limit=3", "timeoutSeconds=-1", "watch=perhaps", "fieldSelector=spec.nodeName%3Da", "shardSelector=x"} {
		ctx, cancel := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/namespaces/ns/pods?watch=1&"+query, nil)
		info := &apirequest.RequestInfo{IsResourceRequest: true, Path: "/api/v1/namespaces/ns/pods", Verb: "watch", APIPrefix: "api", APIVersion: "v1",
			Namespace: "ns", Resource: "pods", Parts: []string{"pods"}}
		left := false
		w := newStream()
		s.fastReader.Before(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { left = true })).ServeHTTP(w, r.WithContext(apirequest.WithRequestInfo(ctx, info)))
		cancel()
		if !left || len(w.body) > 0 || w.code != 0 {
			t.Errorf("%s: answered with %d %q", query, w.code, w.body)
		}
	}
}
