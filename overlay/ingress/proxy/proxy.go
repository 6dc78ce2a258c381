package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/overlay/ingress/plan"
)

// Defaults of Config.
const (
	DefaultMaxConnections = 8192
	DefaultHeaderTimeout  = 10 * time.Second
	DefaultStallTimeout   = time.Minute
	DefaultDrain          = 30 * time.Second
)

// maxHeader bounds a request's header, in bytes; net/http adds 4 KiB of its own.
const maxHeader = 64 << 10

// Config configures a Proxy.
type Config struct {
	// Listen opens a TCP port; nil listens on all addresses of the machine.
	Listen func(port uint16) (net.Listener, error)
	// HTTPSPort is the port in redirects of requests that must use TLS.
	HTTPSPort uint16
	// MaxConnections bounds the connections of clients; one client address may have half of them. The bound of concurrent
	// requests is four times MaxConnections.
	MaxConnections int
	// HeaderTimeout bounds TLS handshakes and the reading of a request's header, StallTimeout how long a body of known
	// length, or an answer that the client does not read, may stand still. Silent streams of unknown length are not bounded.
	HeaderTimeout, StallTimeout time.Duration
	// Drain is how long requests may continue after their port was closed.
	Drain  time.Duration
	Logger *slog.Logger
}

func (c *Config) fill() {
	if c.Listen == nil {
		c.Listen = func(port uint16) (net.Listener, error) {
			return net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(int(port))))
		}
	}
	if c.MaxConnections <= 0 {
		c.MaxConnections = DefaultMaxConnections
	}
	for _, d := range []struct {
		value *time.Duration
		or    time.Duration
	}{{&c.HeaderTimeout, DefaultHeaderTimeout}, {&c.StallTimeout, DefaultStallTimeout}, {&c.Drain, DefaultDrain}} {
		if *d.value <= 0 {
			*d.value = d.or
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// Proxy serves the ports of a plan.
type Proxy struct {
	cfg     Config
	guard   *guard
	carrier *carrier
	reverse *httputil.ReverseProxy
	entries map[uint16]*entry
	spare   spare

	requests   atomic.Int64 // under way
	mirroring  chan struct{}
	lastWarned atomic.Int64 // when the warning about too many connections was last logged
	running    sync.WaitGroup
	ctx        context.Context // the context of mirrored requests, which outlive the original request
	cancel     context.CancelFunc
}

// New prepares a proxy that listens nowhere. Close must be called.
func New(cfg Config) *Proxy {
	cfg.fill()
	p := &Proxy{cfg: cfg, guard: newGuard(cfg.MaxConnections), carrier: newCarrier(), entries: map[uint16]*entry{}, mirroring: make(chan struct{}, 256)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.reverse = &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: p.carrier, ModifyResponse: modify, ErrorHandler: p.respondFailure, BufferPool: &buffers{},
		ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	return p
}

// Apply opens and closes ports to match the plan. It returns the errors of ports that could not be opened; a further Apply
// with the same plan tries them again.
func (p *Proxy) Apply(next *plan.Plan) map[uint16]error {
	for number, e := range p.entries {
		if want := next.Ports[number]; want == nil || want.TLS != e.withTLS {
			p.drop(number)
		}
	}
	faults := map[uint16]error{}
	for number, want := range next.Ports {
		if e := p.entries[number]; e != nil {
			e.plan.Store(want)
			continue
		}
		if err := p.open(want); err != nil {
			faults[number] = err
		}
	}
	p.carrier.pools.dropUnused(next.Backends)
	return faults
}

// SetEndpoints sets the endpoints of a backend. The next plan without the backend drops them.
func (p *Proxy) SetEndpoints(b plan.Backend, addrs []netip.AddrPort) { p.carrier.pools.set(b, addrs) }

// Listening returns the open ports with their addresses.
func (p *Proxy) Listening() map[uint16]net.Addr {
	out := map[uint16]net.Addr{}
	for number, e := range p.entries {
		out[number] = e.addr
	}
	return out
}

// Close closes all ports. Running requests have Config.Drain to end.
func (p *Proxy) Close() {
	for number := range p.entries {
		p.drop(number)
	}
	p.cancel()
	p.running.Wait()
	p.carrier.close()
}

func (p *Proxy) drop(number uint16) {
	e := p.entries[number]
	delete(p.entries, number)
	e.listener.Close() // at once, so that the port is free when drop returns
	p.running.Go(fault.Contained("ingress/proxy", func() {
		ctx, cancel := context.WithTimeout(context.Background(), p.cfg.Drain)
		defer cancel()
		if e.server.Shutdown(ctx) != nil {
			e.server.Close()
		}
		e.end()
	}))
}

// warnTooMany logs, at most once a minute, that connections are refused.
func (p *Proxy) warnTooMany() {
	now, last := time.Now().Unix(), p.lastWarned.Load()
	if now-last >= 60 && p.lastWarned.CompareAndSwap(last, now) {
		p.cfg.Logger.Warn("ingress has too many connections; it closes new ones", "limit", p.cfg.MaxConnections, "refused", p.guard.lost.Swap(0))
	}
}

// respondFailure answers a request whose backend did not answer.
func (p *Proxy) respondFailure(w http.ResponseWriter, r *http.Request, err error) {
	status, text := http.StatusBadGateway, "the backend did not answer"
	switch {
	case errors.Is(err, ErrNoEndpoints):
		status, text = http.StatusServiceUnavailable, ErrNoEndpoints.Error()
	case r.Context().Err() == context.Canceled: // the client has gone
	case isTimeout(err):
		status, text = http.StatusGatewayTimeout, "the backend did not answer in time"
	}
	p.cfg.Logger.Debug("ingress request failed", "host", r.Host, "status", status, "err", err)
	respond(w, status, text)
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}

// respond writes a short response of the proxy itself.
func respond(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, fmt.Sprintf("%d %s: %s\n", status, http.StatusText(status), text))
}

// buffers implements httputil.BufferPool.
type buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if buf, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return buf[:]
	}
	return make([]byte, bufferSize)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(buf []byte) {
	if cap(buf) >= bufferSize {
		b.pool.Put((*[bufferSize]byte)(buf[:bufferSize]))
	}
}
