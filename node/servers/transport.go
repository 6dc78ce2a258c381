package servers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"k8s.io/client-go/rest"
)

// serverName is in every API server's certificate, whatever its addresses are.
const serverName = "kubernetes.default.svc"

// idleTimeout closes connections that nothing runs on.
const idleTimeout = 90 * time.Second

// Config returns a copy of base whose transport reaches any of the servers. The client's identity and the authority it trusts
// are those of base; the Set chooses the server. Certificate files are read again when they change. Clients made from one result
// share its connection.
func (s *Set) Config(base *rest.Config) (*rest.Config, error) {
	settings, err := rest.TLSConfigFor(base)
	if err != nil {
		return nil, fmt.Errorf("servers: TLS of %s: %w", base.Host, err)
	}
	if settings == nil {
		return nil, fmt.Errorf("servers: %s names no certificate authority", base.Host)
	}
	if t := base.TLSClientConfig; t.CertFile != "" && len(t.CertData) == 0 {
		settings.Certificates, settings.GetClientCertificate = nil, reloaded(t.CertFile, t.KeyFile)
	}
	out := rest.CopyConfig(base)
	out.Host, out.TLSClientConfig, out.Dial, out.Proxy = "https://"+serverName, rest.TLSClientConfig{}, nil, nil
	out.Transport = s.Transport(settings)
	return out, nil
}

// Transport returns a round-tripper to any of the servers. settings have the trusted authorities and the client's certificate.
// They are used for each handshake, so GetClientCertificate is called each time. The default ServerName is the name that each
// API server's certificate has.
func (s *Set) Transport(settings *tls.Config) http.RoundTripper {
	settings = settings.Clone()
	if settings.ServerName == "" {
		settings.ServerName = serverName
	}
	settings.NextProtos = []string{"h2", "http/1.1"}
	if s.cfg.TLS != nil {
		settings = s.cfg.TLS(settings)
	}
	t := &transport{set: s, tls: settings}
	t.current = t.generation()
	s.mu.Lock()
	s.transports = append(s.transports, t)
	s.mu.Unlock()
	return t
}

// reloaded reads a certificate again when its file has changed.
func reloaded(certFile, keyFile string) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	var mu sync.Mutex
	var read time.Time
	var last *tls.Certificate
	return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		mu.Lock()
		defer mu.Unlock()
		info, err := os.Stat(certFile)
		if err == nil && last != nil && info.ModTime().Equal(read) {
			return last, nil
		}
		pair, loadErr := tls.LoadX509KeyPair(certFile, keyFile)
		if err = errors.Join(err, loadErr); err != nil {
			if last != nil {
				return last, nil // being replaced at this moment
			}
			return nil, fmt.Errorf("servers: client certificate: %w", err)
		}
		read, last = info.ModTime(), &pair
		return last, nil
	}
}

// transport is an http.RoundTripper whose connection may be to any of the servers.
type transport struct {
	set *Set
	tls *tls.Config

	mu      sync.Mutex
	current *generation
}

// generation is one pool of connections, in practice one connection. A later one takes over new requests while those under
// way end here.
type generation struct {
	*http.Transport

	mu   sync.Mutex
	addr string // of the newest connection
}

func (t *transport) generation() *generation {
	g := &generation{}
	g.Transport = &http.Transport{
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			found, err := race(ctx, t.set, t.handshake, func(f handshaked) { f.Close() })
			if err != nil {
				return nil, err
			}
			g.mu.Lock()
			g.addr = found.addr
			g.mu.Unlock()
			return found.Conn, nil
		},
		ForceAttemptHTTP2: true, IdleConnTimeout: idleTimeout, MaxIdleConnsPerHost: 4,
		DisableCompression: true, // nodes are near their servers: packing costs both more than it saves
	}
	if h2, err := http2.ConfigureTransports(g.Transport); err == nil { // it fails for a transport that was configured before
		h2.ReadIdleTimeout, h2.PingTimeout = t.set.cfg.Idle, t.set.cfg.Answer
	}
	return g
}

type handshaked struct {
	*tls.Conn
	addr string
}

func (t *transport) handshake(ctx context.Context, one Server) (handshaked, error) {
	c, err := t.set.connect(ctx, one)
	if err != nil {
		return handshaked{}, err
	}
	secure := tls.Client(c, t.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		c.Close()
		return handshaked{}, err
	}
	return handshaked{secure, one.Addr}, nil
}

// RoundTrip implements http.RoundTripper. It repeats a GET or HEAD once when its connection was lost before the answer. Other
// requests are not repeated: only the caller knows whether they may take effect twice.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.mu.Lock()
	g := t.current
	t.mu.Unlock()
	response, err := g.RoundTrip(r)
	if err != nil && r.Context().Err() == nil && (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Body == nil && !errors.Is(err, ErrNoServer) {
		t.renew(func(now *generation) bool { return now == g })
		t.mu.Lock()
		g = t.current
		t.mu.Unlock()
		response, err = g.RoundTrip(r)
	}
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusSwitchingProtocols { // after a switch the body is the connection itself
		response.Body = body{response.Body}
	}
	return response, nil
}

// CloseIdleConnections is called by http.Client's method of that name.
func (t *transport) CloseIdleConnections() {
	t.mu.Lock()
	g := t.current
	t.mu.Unlock()
	g.CloseIdleConnections()
}

// moveTo lets new requests go to addr when they do not now.
func (t *transport) moveTo(addr string) {
	t.renew(func(g *generation) bool { at := g.at(); return at != "" && at != addr })
}

// renew begins a new generation if the current one is unwanted. Requests on the old one go on; its connections close when
// they are idle.
func (t *transport) renew(unwanted func(*generation) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.current; unwanted(old) {
		t.current = t.generation()
		old.CloseIdleConnections()
	}
}

// at is the address of the newest connection, "" before the first.
func (g *generation) at() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.addr
}

// body lets a stream that was cut off look like that: client-go resumes a watch that ends in the middle, and lists anew
// after an error it does not know.
type body struct{ io.ReadCloser }

// Read implements io.Reader.
func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && lost(err) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func lost(err error) bool {
	if errors.Is(err, net.ErrClosed) {
		return true
	}
	text := err.Error()
	return strings.Contains(text, "client connection lost") || strings.Contains(text, "connection reset by peer")
}
