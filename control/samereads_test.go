package control

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/balsahq/balsa/control/auth/authn"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/raftstore"
)

var (
	sameRequests = flag.Int("same.requests", 2000, "how many requests TestFastReadsAnswerAsApiserverDoes compares")
	sameSeed     = flag.Uint64("same.seed", 0, "what it chooses them by; 0 is any")
)

const (
	requestsPerWorld  = 2500
	differencesAtMost = 20
)

// TestFastReadsAnswerAsApiserverDoes sends generated requests of users with generated rights to one server by two chains
// of handlers, with the fast reads and without. Each world is in a bubble of fake time, so it is known when a watch has
// said all it has to say.
func TestFastReadsAnswerAsApiserverDoes(t *testing.T) {
	seed := cmp.Or(*sameSeed, rand.Uint64())
	t.Logf("-same.seed %d", seed)
	var sum tally
	for world := uint64(0); sum.requests < *sameRequests && sum.differences < differencesAtMost; world++ {
		n := min(requestsPerWorld, *sameRequests-sum.requests)
		synctest.Test(t, func(t *testing.T) {
			w := newTwice(t, rand.New(rand.NewPCG(seed, world)), world%8 == 7)
			for i := 0; i < n && sum.differences < differencesAtMost; i++ {
				w.compare(t, &sum)
			}
			sum.users += len(w.users)
		})
	}
	t.Log(sum)
	if sum.fast["get"] == 0 || sum.fast["list"] == 0 || sum.fast["watch"] == 0 || sum.statuses[http.StatusForbidden] == 0 {
		t.Error("the requests do not show anything")
	}
}

// tally is what was compared.
type tally struct {
	requests, users, unsettled, differences int
	verbs, fast                             map[string]int // all, and those answered without k8s.io/apiserver
	statuses                                map[int]int
}

func (s tally) String() string {
	return fmt.Sprintf("%d requests of %d users: %d differences; by verb %v, answered by fast reads %v, by status %v; state did not hold still for %d",
		s.requests, s.users, s.differences, s.verbs, s.fast, s.statuses, s.unsettled)
}

// twice is a server with two ways in.
type twice struct {
	*Server
	choice     *rand.Rand
	wild       bool     // the request that is chosen may be anything
	users      []string // their tokens are their names; "" is anonymous
	fast, slow http.Handler
	infos      apirequest.RequestInfoResolver
	reads      atomic.Int64 // requests that came as far as to the fast reads
	left       atomic.Int64 // those that were left to k8s.io/apiserver
	admin      dynamic.Interface
}

func newTwice(t *testing.T, choice *rand.Rand, initializers bool) *twice {
	t.Helper()
	store, err := raftstore.Open(raftstore.Config{InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	authority, err := pki.Open(pki.Config{Dir: t.TempDir(), IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, ServiceIP: net.IPv4(10, 96, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	w := &twice{choice: choice}
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	var csv strings.Builder
	for name, groups := range w.chooseUsers() {
		fmt.Fprintf(&csv, "%s,%s,%s,\"%s\"\n", name, name, name, groups)
		w.users = append(w.users, name)
	}
	slices.Sort(w.users)
	w.users = append(w.users, "")
	if err := os.WriteFile(tokens, []byte(csv.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Server, err = New(Config{Store: store, PKI: authority, AdvertiseAddress: netip.MustParseAddr("192.0.2.1"), Logger: slog.New(slog.DiscardHandler),
		Authentication: authn.Settings{TokenFile: tokens}, Initializers: initializers})
	if err != nil {
		t.Fatal(err)
	}
	c := w.genericConfig().Complete(nil)
	api := w.generic.Handler.Director
	w.infos = c.RequestInfoResolver
	w.slow = w.handlerChainWith(func(next http.Handler) http.Handler { return next }, api, c.Config)
	w.fast = w.handlerChainWith(func(next http.Handler) http.Handler {
		reads := w.fastReads(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w.left.Add(1)
			next.ServeHTTP(rw, r)
		}))
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w.reads.Add(1)
			reads.ServeHTTP(rw, r)
		})
	}, api, c.Config)
	storeCtx, stopStore := context.WithCancel(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	storeDone, done := make(chan error, 1), make(chan error, 1)
	go func() { storeDone <- store.Run(storeCtx) }()
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		stopStore()
		<-storeDone
	})
	<-w.Ready()
	if w.admin, err = dynamic.NewForConfig(w.Client(Identity{User: "admin", Groups: []string{"system:masters"}})); err != nil {
		t.Fatal(err)
	}
	w.populate(t)
	return w
}

// populate writes what there is to be read, and who may read it.
func (w *twice) populate(t *testing.T) {
	t.Helper()
	docs := append(strings.Split(sameWorld, "\n---\n"), w.chooseRights()...)
	for i := range 30 { // together more than what is compressed
		docs = append(docs, fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: big-%d, namespace: b, labels: {color: red}}, data: {text: %q}}", i, strings.Repeat("text ", 2000)))
	}
	for _, doc := range docs {
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &obj.Object); err != nil {
			t.Fatal(doc, err)
		}
		w.create(t, kindNamed(obj.GetKind()), obj)
	}
	w.populateEdge(t)
	synctest.Wait()
}

// populateEdge writes objects as long as what is just not compressed, and a little less and more.
func (w *twice) populateEdge(t *testing.T) {
	t.Helper()
	const edge = 128 << 10
	write := func(name string, length int) (answer int) {
		obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": name, "namespace": "b"}, "data": map[string]any{"text": strings.Repeat("x", length)}}}
		w.create(t, kindNamed("ConfigMap"), obj)
		r, err := (&sameRequest{method: http.MethodGet, target: "/api/v1/namespaces/b/configmaps/" + name, header: http.Header{"Authorization": {"Bearer root"}}}).http(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		to := newStream()
		w.slow.ServeHTTP(to, r)
		return len(to.body)
	}
	over := write("edge-0", edge) - edge
	for i := range 3 {
		write(fmt.Sprintf("edge-%d", i+1), edge-over+i-1)
	}
}

// create writes an object; a kind that is not served yet is waited for.
func (w *twice) create(t *testing.T, k sameKind, obj *unstructured.Unstructured) {
	t.Helper()
	var err error
	for range 100 {
		if _, err = w.objects(k, obj.GetNamespace()).Create(t.Context(), obj, metav1.CreateOptions{}); err == nil {
			return
		}
		time.Sleep(time.Second) // of the bubble
	}
	t.Fatal(obj.GetKind(), obj.GetName(), err)
}

func (w *twice) objects(k sameKind, namespace string) dynamic.ResourceInterface {
	all := w.admin.Resource(schema.GroupVersionResource{Group: k.group, Version: k.version, Resource: k.resource})
	if k.cluster {
		return all
	}
	return all.Namespace(namespace)
}

// disturb changes some objects of a kind.
func (w *twice) disturb(t *testing.T, k sameKind) {
	t.Helper()
	ctx := t.Context()
	for range 1 + w.choice.IntN(3) {
		list, err := w.objects(k, "").List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			return // nothing of this kind can be changed
		}
		obj := &list.Items[w.choice.IntN(len(list.Items))]
		in := w.objects(k, obj.GetNamespace())
		if (obj.GetKind() == "Secret" || obj.GetKind() == "ConfigMap" || obj.GetKind() == "Widget") && obj.GetNamespace() != "kube-system" && w.one(3) {
			if err := in.Delete(ctx, obj.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			obj.SetResourceVersion("")
			obj.SetUID("")
			w.create(t, k, obj)
			continue
		}
		color := []string{`"red"`, `"blue"`, "null", `"<&>\u2028"`}[w.choice.IntN(3)]
		patch := fmt.Sprintf(`{"metadata":{"labels":{"color":%s},"annotations":{"n":"<%d&\u2028"}}}`, color, w.choice.IntN(1000))
		if _, err := in.Patch(ctx, obj.GetName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Logf("%s %s is not changed: %v", k.resource, obj.GetName(), err)
		}
	}
}

// compare sends one request by both ways.
func (w *twice) compare(t *testing.T, sum *tally) {
	t.Helper()
	q := w.choose()
	if _, err := q.http(t.Context()); err != nil {
		return // no server takes such bytes for a request
	}
	var here, there *stream
	var verb string
	settled := false
	for range 4 {
		synctest.Wait()
		before, reads, left := w.cfg.Store.View().Revision(), w.reads.Load(), w.left.Load()
		here, there, verb, settled = w.ask(t, q, before)
		if settled {
			if w.reads.Load() > reads && w.left.Load() == left {
				sum.count(&sum.fast, verb)
			}
			break
		}
	}
	sum.requests++
	if !settled {
		sum.unsettled++
		return
	}
	sum.count(&sum.verbs, verb)
	if sum.statuses == nil {
		sum.statuses = map[int]int{}
	}
	sum.statuses[there.code]++
	if text := different(here, there); text != "" {
		sum.differences++
		t.Errorf("%s\n%s", q, text)
	}
}

func (*tally) count(m *map[string]int, key string) {
	if *m == nil {
		*m = map[string]int{}
	}
	(*m)[key]++
}

// ask sends a request by both ways at once; a watch is told of some changes and ended then. settled is false when the state
// at revision was not the one that both have seen.
func (w *twice) ask(t *testing.T, q *sameRequest, revision int64) (here, there *stream, verb string, settled bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	here, there = newStream(), newStream()
	done := make(chan bool, 2)
	send := func(h http.Handler, to *stream) {
		r, err := q.http(ctx)
		if err != nil {
			t.Fatal(err)
		}
		info, err := w.infos.NewRequestInfo(r)
		if verb = "broken"; err == nil {
			verb = info.Verb
		}
		go func() {
			h.ServeHTTP(to, r)
			done <- true
		}()
	}
	send(w.fast, here)
	send(w.slow, there)
	if verb == "watch" {
		synctest.Wait()
		settled = w.cfg.Store.View().Revision() == revision
		if len(done) < cap(done) {
			w.disturb(t, q.kind)
			synctest.Wait()
			cancel()
		}
		<-done
		<-done
		return here, there, verb, settled
	}
	<-done
	<-done
	return here, there, verb, w.cfg.Store.View().Revision() == revision
}

// different says how two answers differ; "" when they do not.
func different(here, there *stream) string {
	drop := func(s *stream) http.Header {
		h := maps.Clone(s.header)
		delete(h, "Audit-Id")
		delete(h, "Date")
		return h
	}
	a, b := drop(here), drop(there)
	if cmp.Or(here.code, http.StatusOK) != cmp.Or(there.code, http.StatusOK) || !reflect.DeepEqual(a, b) {
		return fmt.Sprintf("here %d %v %.300q\nupstream %d %v %.300q", here.code, a, here.body, there.code, b, there.body)
	}
	got, want := plain(here), plain(there)
	if !bytes.Equal(got, want) {
		return apart(got, want)
	}
	return ""
}

// made is what a server makes up for each new object.
var made = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]+Z`)

// headers are in some events of a watched Table: k8s.io/apiserver writes them again when it took the event before from
// another watch.
var headers = regexp.MustCompile(`(?s)"columnDefinitions":.*?"rows":`)

// plain is an answer without compression and headers of tables, and of a write without what is made up.
func plain(s *stream) []byte {
	body := headers.ReplaceAll(s.body, nil)
	if s.header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return []byte(err.Error())
		}
		if body, err = io.ReadAll(z); err != nil {
			return []byte(err.Error())
		}
	}
	if s.code == http.StatusCreated {
		body = made.ReplaceAll(body, nil)
	}
	return body
}

// sameRequest is a request, to be made twice.
type sameRequest struct {
	kind                 sameKind
	method, target, body string
	header               http.Header
	address              string
}

func (q *sameRequest) String() string {
	return fmt.Sprintf("%s %s %v from %s %s", q.method, q.target, q.header, q.address, q.body)
}

// http is the request as net/http's server reads it.
func (q *sameRequest) http(ctx context.Context) (*http.Request, error) {
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s %s HTTP/1.1\r\nHost: balsa\r\nContent-Length: %d\r\n", q.method, q.target, len(q.body))
	if err := q.header.Write(&text); err != nil {
		return nil, err
	}
	text.WriteString("\r\n" + q.body)
	r, err := http.ReadRequest(bufio.NewReader(&text))
	if err != nil {
		return nil, err
	}
	r.RemoteAddr = q.address
	return r.WithContext(ctx), nil
}
