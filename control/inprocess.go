package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	restclient "k8s.io/client-go/rest"

	"github.com/balsahq/balsa/control/auth/authn"
	"github.com/balsahq/balsa/control/storage"
	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore"
)

// ErrStopped means that the server no longer answers.
var ErrStopped = errors.New("API server has stopped")

// Identity is the user of an in-process client.
type Identity struct {
	User   string
	Groups []string // system:authenticated is always added
	// Fence, if set, is a condition of every write: a write is refused once another leader has been elected.
	Fence *raftstore.Compare
}

// Client returns the configuration of a client that calls the server's handlers directly. It may be used as soon as
// New has returned; requests wait for nothing but the store.
func (s *Server) Client(id Identity) *restclient.Config {
	return &restclient.Config{
		Host:      "http://in-process",
		Transport: &transport{server: s, id: id},
		UserAgent: "balsa/" + id.User,
		QPS:       -1, // handlers in this process need no throttling by their own clients
		// Warnings are for people; controllers of this process know what they do.
		WarningHandler: restclient.NoWarnings{},
		ContentConfig: restclient.ContentConfig{
			ContentType:        runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
	}
}

// transport is an http.RoundTripper without a network.
type transport struct {
	server *Server
	id     Identity
}

// RoundTrip implements http.RoundTripper: it runs the handler in a goroutine of its own and returns when there is a
// header; the body streams. Closing the body or ending the request's context ends the handler's context.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	s := t.server
	if !s.enter() {
		return nil, ErrStopped
	}
	// A caller may itself be in the middle of a request, such as an admission plug-in that reads an object: the values of that
	// request's context, its audit event among them, are not this one's.
	ctx, cancel := context.WithCancel(context.Background())
	detachCaller, detachServer := context.AfterFunc(req.Context(), cancel), context.AfterFunc(s.stopping, cancel)
	body := newResponse(cancel)
	go fault.Contained("control/request", func() {
		defer s.inflight.Done()
		defer detachServer()
		defer detachCaller()
		t.serve(ctx, req, body)
	})()
	select {
	case <-body.ready:
		return body.response(req), nil
	case <-ctx.Done():
		_ = body.Close()
		if err := req.Context().Err(); err != nil {
			return nil, err
		}
		return nil, ErrStopped
	}
}

func (t *transport) serve(ctx context.Context, req *http.Request, w *response) {
	var err error
	defer func() { w.finish(err) }()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("in-process request: %v", r)
			if r != http.ErrAbortHandler { // else the chain has contained it
				err = fault.Caught("control/request", r)
			}
		}
	}()
	groups := append([]string{user.AllAuthenticated}, t.id.Groups...)
	ctx = authn.WithIdentity(ctx, &user.DefaultInfo{Name: t.id.User, Groups: groups})
	if t.id.Fence != nil {
		ctx = storage.WithFence(ctx, *t.id.Fence)
	}
	r := req.WithContext(ctx)
	r.Header = req.Header.Clone()
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	r.RequestURI, r.RemoteAddr = req.URL.RequestURI(), "127.0.0.1:0"
	if r.Body == nil {
		r.Body = http.NoBody
	} else {
		defer r.Body.Close()
	}
	t.server.handler.ServeHTTP(w, r)
}

// highWater is how many bytes a handler may write ahead of its reader.
const highWater = 1 << 20

// response is both ends of an in-process response: the handler writes to it, the client reads its body.
type response struct {
	header http.Header
	ready  chan struct{} // closed when status and header are final
	cancel context.CancelFunc

	mu     sync.Mutex
	change sync.Cond
	status int
	sent   http.Header // header as it was when the status was written
	data   []byte
	read   int
	done   bool
	closed bool
	err    error
}

func newResponse(cancel context.CancelFunc) *response {
	r := &response{header: http.Header{}, ready: make(chan struct{}), cancel: cancel}
	r.change.L = &r.mu
	return r
}

var (
	_ http.ResponseWriter = (*response)(nil)
	_ http.Flusher        = (*response)(nil)
	_ io.ReadCloser       = (*response)(nil)
)

// Header implements http.ResponseWriter.
func (r *response) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *response) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeHeader(status)
}

func (r *response) writeHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status, r.sent = status, r.header.Clone()
		close(r.ready)
	}
}

// Write implements http.ResponseWriter. It waits while the reader is far behind. After the reader has closed the body,
// writes are dropped without an error, because handlers would log it; their context tells them that the reader is gone.
func (r *response) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeHeader(http.StatusOK)
	for len(r.data)-r.read > highWater && !r.closed {
		r.change.Wait()
	}
	if r.closed {
		return len(p), nil
	}
	if r.read > 0 && r.read == len(r.data) {
		r.data, r.read = r.data[:0], 0
	}
	r.data = append(r.data, p...)
	r.change.Broadcast()
	return len(p), nil
}

// Flush implements http.Flusher: what is written is readable at once.
func (r *response) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeHeader(http.StatusOK)
}

// CloseNotify implements http.CloseNotifier, which wrappers of flushing writers still ask for. Handlers learn of the
// end from their context.
func (r *response) CloseNotify() <-chan bool { return make(chan bool) }

// finish is called when the handler has returned.
func (r *response) finish(err error) {
	r.mu.Lock()
	if r.status == 0 && err != nil {
		r.writeHeader(http.StatusInternalServerError)
	}
	r.writeHeader(http.StatusOK)
	r.done, r.err = true, err
	r.change.Broadcast()
	r.mu.Unlock()
}

// Read implements io.Reader for the client.
func (r *response) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.read == len(r.data) && !r.done && !r.closed {
		r.change.Wait()
	}
	switch {
	case r.closed:
		return 0, http.ErrBodyReadAfterClose
	case r.read < len(r.data):
		n := copy(p, r.data[r.read:])
		r.read += n
		if r.read == len(r.data) && cap(r.data) > highWater/16 {
			r.data, r.read = nil, 0 // a watch idles for hours: hold no large buffer
		}
		r.change.Broadcast()
		return n, nil
	case r.err != nil:
		return 0, r.err
	}
	return 0, io.EOF
}

// Close implements io.Closer for the client.
func (r *response) Close() error {
	r.mu.Lock()
	r.closed = true
	r.data, r.read = nil, 0
	r.change.Broadcast()
	r.mu.Unlock()
	r.cancel()
	return nil
}

func (r *response) response(req *http.Request) *http.Response {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &http.Response{
		Status: fmt.Sprintf("%d %s", r.status, http.StatusText(r.status)), StatusCode: r.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: r.sent, Body: r, ContentLength: -1, Request: req,
	}
}
