package badapitest_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/authn"
	"github.com/balsahq/balsa/control/badapitest"
	"github.com/balsahq/balsa/control/controltest"
)

var (
	requests = flag.Int("badapi.requests", usual, "how many random requests are made")
	seed     = flag.Uint64("badapi.seed", 0, "of the requests; 0: another each time when there are more than usual, and else the same")
)

const (
	usual      = 4000 // requests in a run of all tests; longer runs find new faults
	token      = "wild"
	roundEvery = 1500        // requests until their objects are deleted and the documents are read again
	patience   = time.Minute // of one request
	panicked   = 599         // the code recorded for a panic
	mostHeap   = 400 << 20   // allowed growth of the heap, in bytes
)

func TestMain(m *testing.M) {
	flag.Parse()
	klog.SetLogger(logr.Discard()) // it would log each bad request
	os.Exit(m.Run())
}

// panics collects the panics that the server recovered.
type panics struct {
	mu   sync.Mutex
	list []string
}

func (p *panics) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.list
	p.list = nil
	return out
}

func watchPanics() *panics {
	p := &panics{}
	utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, func(_ context.Context, r any) {
		if r == http.ErrAbortHandler {
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.list = append(p.list, fmt.Sprintf("%v\n%s", r, debug.Stack()))
	})
	return p
}

// trial is a server under test.
type trial struct {
	t       *testing.T
	s       *controltest.Server
	handler http.Handler
	docs    *badapitest.Documents
	panics  *panics
	codes   map[int]int
	faults  map[string]int
}

func start(t *testing.T) *trial {
	p := watchPanics()
	tokens := controltest.File(t, "tokens.csv", token+`,wild,1,"system:masters"`+"\n")
	s := controltest.Start(t, func(c *control.Config) {
		c.Authentication = authn.Settings{TokenFile: tokens}
		c.PodPresets = true
		c.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("nobody is there") }
	})
	x := &trial{t: t, s: s, handler: s.Handler(), panics: p, codes: map[int]int{}, faults: map[string]int{}}
	x.docs = badapitest.NewDocuments(func(path string) (int, []byte) {
		code, _, body := x.send(&badapitest.Request{Method: http.MethodGet, URI: path, Header: http.Header{}})
		return code, body
	})
	x.round()
	return x
}

// send passes a request to the server's handlers as its listener would.
func (x *trial) send(r *badapitest.Request) (code int, header http.Header, body []byte) {
	req, err := http.ReadRequest(newReader(r))
	if err != nil {
		return http.StatusBadRequest, nil, nil // it is no HTTP request
	}
	limit := patience
	if r.Long {
		limit = 10 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(x.t.Context(), limit)
	defer cancel()
	req = req.WithContext(ctx)
	req.RemoteAddr, req.Body, req.ContentLength = "192.0.2.1:1", io.NopCloser(bytes.NewReader(r.Body)), int64(len(r.Body))
	for k, v := range r.Header {
		req.Header[k] = v
	}
	req.Header.Set("Authorization", "Bearer "+token)
	w := &answer{header: http.Header{}, ctx: ctx}
	func() {
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				w.code = panicked
			}
		}()
		x.handler.ServeHTTP(w, req)
	}()
	return w.code, w.header, w.body.Bytes()
}

// answer is the ResponseWriter of one request.
type answer struct {
	ctx    context.Context // of the request
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(code int) {
	if a.code == 0 && (code >= 200 || code == http.StatusSwitchingProtocols) {
		a.code = code
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// Flush implements http.Flusher.
func (a *answer) Flush() { a.WriteHeader(http.StatusOK) }

// CloseNotify implements http.CloseNotifier.
func (a *answer) CloseNotify() <-chan bool { return make(chan bool) }

// Hijack implements http.Hijacker; the returned connection has no peer.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	here, there := net.Pipe()
	a.WriteHeader(http.StatusSwitchingProtocols)
	go func() { _, _ = io.Copy(io.Discard, there) }()
	context.AfterFunc(a.ctx, func() { _ = there.Close() })
	return here, bufio.NewReadWriter(bufio.NewReader(here), bufio.NewWriter(here)), nil
}

// round deletes objects that get in the way of other requests, and reads the documents again.
func (x *trial) round() {
	x.t.Helper()
	c, err := kubernetes.NewForConfig(x.s.Client(control.Identity{User: "tidy", Groups: []string{"system:masters"}}))
	if err != nil {
		x.t.Fatal(err)
	}
	x.tidy(c)
	if err := x.docs.Load(); err != nil {
		x.t.Fatal(err)
	}
}

func (x *trial) tidy(c kubernetes.Interface) {
	x.t.Helper()
	ctx, all := x.t.Context(), metav1.ListOptions{}
	a := c.AdmissionregistrationV1()
	for what, remove := range map[string]func(context.Context, metav1.DeleteOptions, metav1.ListOptions) error{
		"validating webhooks":  a.ValidatingWebhookConfigurations().DeleteCollection,
		"mutating webhooks":    a.MutatingWebhookConfigurations().DeleteCollection,
		"validating policies":  a.ValidatingAdmissionPolicies().DeleteCollection,
		"bindings":             a.ValidatingAdmissionPolicyBindings().DeleteCollection,
		"mutating policies":    a.MutatingAdmissionPolicies().DeleteCollection,
		"bindings of mutating": a.MutatingAdmissionPolicyBindings().DeleteCollection,
		"quotas":               c.CoreV1().ResourceQuotas("wild").DeleteCollection,
		"ranges":               c.CoreV1().LimitRanges("wild").DeleteCollection,
	} {
		if err := remove(ctx, metav1.DeleteOptions{}, all); err != nil {
			x.t.Logf("tidy %s: %v", what, err)
		}
	}
	if ns, err := c.CoreV1().Namespaces().Get(ctx, "wild", metav1.GetOptions{}); err == nil && ns.DeletionTimestamp != nil {
		ns.Spec.Finalizers, ns.Finalizers = nil, nil
		if _, err := c.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{}); err != nil {
			x.t.Logf("tidy the namespace: %v", err)
		}
		_ = c.CoreV1().Namespaces().Delete(ctx, "wild", metav1.DeleteOptions{})
	}
	_, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "wild"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		x.t.Logf("tidy: %v", err)
	}
}

// one sends a request and checks the answer.
func (x *trial) one(w *badapitest.Wild, i int) {
	r := w.Next()
	began := time.Now()
	code, header, body := x.send(r)
	x.codes[code]++
	w.Answered(r, code, header, body)
	fault := badapitest.Verdict(code, body)
	if again := r.Otherwise(); again != nil && i%3 == 0 {
		fault += x.compare(r, again)
	}
	for _, p := range x.panics.take() {
		fault += "\npanic: " + p
	}
	if took := time.Since(began); took > 10*time.Second {
		x.t.Logf("%v: %v", took, r)
	}
	if fault == "" {
		return
	}
	first, _, _ := strings.Cut(fault, "\n")
	key := fmt.Sprintf("%d %.60s", code, first)
	if x.faults[key]++; x.faults[key] == 1 {
		x.t.Errorf("%d: %.6000s\n%v", code, fault, r)
	}
}

// newReader returns the head of a request as it comes over a connection.
func newReader(r *badapitest.Request) *bufio.Reader {
	return bufio.NewReader(strings.NewReader(r.Method + " " + r.URI + " HTTP/1.1\r\nHost: x\r\n\r\n"))
}

// compare sends a read twice, such that different parts of the server answer, and expects equal answers.
func (x *trial) compare(r, again *badapitest.Request) (fault string) {
	for range 3 { // an object may change in between
		code, _, body := x.send(r)
		code2, _, body2 := x.send(again)
		if code == code2 && (bytes.Equal(body, body2) || code >= 300) {
			return ""
		}
		fault = fmt.Sprintf("%s is answered in two ways: %d and %d\n%.3000q\n%.3000q", r.Kind(), code, code2, body, body2)
	}
	return fault
}

func held() uint64 {
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestRandomRequestsBreakNothing(t *testing.T) {
	from := *seed
	if from == 0 {
		if from = 1; *requests > usual {
			from = uint64(time.Now().UnixNano())
		}
	}
	t.Logf("-badapi.seed=%d", from)
	x := start(t)
	w, err := badapitest.New(x.docs, from)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d operations", x.docs.Size())
	before, began := held(), time.Now()
	for i := range *requests {
		if i%roundEvery == roundEvery-1 {
			x.round()
		}
		x.one(w, i)
	}
	x.tidy(x.s.Admin())
	after := held()
	t.Logf("%d requests in %v: %v; heap %d MiB before, %d after", *requests, time.Since(began).Round(time.Second), x.codes, before>>20, after>>20)
	for key, n := range x.faults {
		t.Logf("%5d times %s", n, key)
	}
	if after > before+mostHeap {
		t.Errorf("the heap has grown from %d to %d MiB", before>>20, after>>20)
	}
	// As the administrator, because the rights of other users may have been deleted.
	if err := x.s.Admin().Discovery().RESTClient().Get().AbsPath("/readyz").Do(t.Context()).Error(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	name := metav1.ObjectMeta{Name: "afterwards"}
	if _, err := x.s.Admin().CoreV1().ConfigMaps("kube-system").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: name}, metav1.CreateOptions{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
