package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/balsahq/balsa/overlay/ingress/plan"
)

// ErrNoEndpoints is the error for a backend without a ready endpoint.
var ErrNoEndpoints = errors.New("no endpoint is ready")

const (
	dialTimeout = 3 * time.Second
	attempts    = 3 // the number of endpoints at which one request may be tried
	idlePerHost = 128
	idleTime    = 90 * time.Second
)

// dialError is an error before a connection was made; no part of the request was sent.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

// carrier is the http.RoundTripper that sends requests to endpoints. The context of a request carries its *exchange.
type carrier struct {
	pools      pools
	transports map[plan.Protocol]*http.Transport
}

func newCarrier() *carrier {
	c := &carrier{transports: map[plan.Protocol]*http.Transport{}}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	for _, p := range []plan.Protocol{plan.HTTP, plan.H2C, plan.HTTPS} {
		t := &http.Transport{
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dialer.DialContext(ctx, network, addr)
				if err != nil {
					return nil, dialError{err}
				}
				return conn, nil
			},
			MaxIdleConns: 4096, MaxIdleConnsPerHost: idlePerHost, IdleConnTimeout: idleTime, TLSHandshakeTimeout: 5 * time.Second,
			ExpectContinueTimeout: time.Second, DisableCompression: true, MaxResponseHeaderBytes: 256 << 10,
			HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}, Protocols: new(http.Protocols),
		}
		switch p {
		case plan.H2C:
			t.Protocols.SetUnencryptedHTTP2(true)
		case plan.HTTPS:
			t.Protocols.SetHTTP1(true)
			t.Protocols.SetHTTP2(true)
			// Endpoints are addresses from the control plane; there is no host name to verify a certificate against.
			t.TLSClientConfig = &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
		default:
			t.Protocols.SetHTTP1(true)
		}
		c.transports[p] = t
	}
	return c
}

func (c *carrier) close() {
	for _, t := range c.transports {
		t.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper. It tries endpoints until one answers, as long as a repetition is safe.
func (c *carrier) RoundTrip(req *http.Request) (*http.Response, error) {
	x, ok := req.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, errors.New("proxy: a request without a backend")
	}
	return c.carry(req, x.backend, x.target.AttemptTimeout)
}

// carry tries a request at the endpoints of a backend. timeout bounds each attempt; 0 is no bound.
func (c *carrier) carry(req *http.Request, backend plan.Backend, timeout time.Duration) (*http.Response, error) {
	pool := c.pools.get(backend)
	if pool == nil {
		return nil, fmt.Errorf("%s/%s: %w", backend.Namespace, backend.Service, ErrNoEndpoints)
	}
	transport := c.transports[protocolFor(req, backend.Protocol)]
	hasBody := req.Body != nil && req.Body != http.NoBody
	var tried []*endpoint
	var last error
	for range attempts {
		e := pool.pick(tried, time.Now())
		if e == nil {
			break
		}
		resp, err := attempt(req, e, transport, timeout)
		if err == nil {
			return resp, nil
		}
		last = err
		if req.Context().Err() != nil || !mayRepeat(req, err, hasBody) {
			break
		}
		e.avoid(time.Now())
		tried = append(tried, e)
	}
	if last == nil {
		last = fmt.Errorf("%s/%s: %w", backend.Namespace, backend.Service, ErrNoEndpoints)
	}
	return nil, last
}

// protocolFor returns the protocol for one request: an upgrade needs HTTP/1.1, gRPC needs HTTP/2.
func protocolFor(req *http.Request, p plan.Protocol) plan.Protocol {
	switch {
	case p == plan.H2C && req.Header.Get("Upgrade") != "":
		return plan.HTTP
	case p == plan.HTTP && isGRPC(req):
		return plan.H2C
	}
	return p
}

func attempt(req *http.Request, e *endpoint, t *http.Transport, timeout time.Duration) (*http.Response, error) {
	ctx, cancel := req.Context(), context.CancelFunc(func() {})
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
	}
	out := req.WithContext(ctx)
	u := *req.URL
	u.Host = e.addr
	out.URL = &u
	if req.Body != nil && req.Body != http.NoBody {
		out.Body = struct {
			io.Reader
			io.Closer
		}{req.Body, keepOpen{}}
	}
	e.pending.Add(1)
	var once sync.Once
	done := func() {
		once.Do(func() {
			cancel()
			e.pending.Add(-1)
		})
	}
	resp, err := t.RoundTrip(out)
	if err != nil {
		done()
		return nil, err
	}
	if conn, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
		resp.Body = &tunnel{conn, done}
	} else {
		resp.Body = &countedBody{resp.Body, done}
	}
	return resp, nil
}

// mayRepeat reports whether a failed request may be tried at another endpoint: it was never sent, or it is idempotent and
// has no body.
func mayRepeat(req *http.Request, err error, hasBody bool) bool {
	var dial dialError
	if errors.As(err, &dial) {
		return true
	}
	if hasBody || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return req.Header.Get("Upgrade") == ""
	}
	return false
}

// countedBody decrements the endpoint's count of requests at its end or when it is closed.
type countedBody struct {
	io.ReadCloser
	done func()
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.done()
	}
	return n, err
}

func (b *countedBody) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}

// tunnel is a connection that has changed its protocol.
type tunnel struct {
	io.ReadWriteCloser
	done func()
}

func (t *tunnel) Close() error {
	defer t.done()
	return t.ReadWriteCloser.Close()
}

// keepOpen is a Close without effect, for a body that the next attempt may need. The owner of the request closes the body.
type keepOpen struct{}

func (keepOpen) Close() error { return nil }
