package peer

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/balsahq/balsa/fault"
)

// PortConfig is the port's socket, its certificates and its limits. Listener, Certificate and Roots are required.
type PortConfig struct {
	// Listener is the TCP socket. Run closes it.
	Listener net.Listener
	// Certificate returns the certificate for REST and gRPC clients. It is called at every handshake.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Roots returns the authorities that verify clients' certificates. It is called at every handshake.
	Roots func() *x509.CertPool
	// Hints returns the authorities that are named to REST's clients, which show a certificate of one of them. REST's server decides
	// which user that is; here the certificate only decides under which limit the connection counts. Default: Roots.
	Hints func() *x509.CertPool
	// MinVersion and CipherSuites bound the TLS of REST and gRPC clients, as in tls.Config. Default: TLS 1.2 and Go's choice.
	// Members of the cluster speak TLS 1.3.
	MinVersion   uint16
	CipherSuites []uint16
	// Logger gets refusals, each kind at most once a minute per address. Default: slog.Default().
	Logger *slog.Logger

	// MaxHandshakes bounds the connections whose handshake is not done. With one more, one whose client is silent is closed, from the
	// address that has the most; if all wait for this server, the new one is refused. Default 4096.
	MaxHandshakes int
	// MaxComputing bounds the handshakes that compute at once; the others wait, and the addresses take turns. Default two per processor,
	// at least four.
	MaxComputing int
	// HandshakeTimeout bounds the client's time in a handshake, HandshakeWait how long a handshake waits for its turn to compute. Default
	// 5 s and 10 s.
	HandshakeTimeout, HandshakeWait time.Duration
	// MaxAnonymous and MaxAnonymousPerIP bound the connections without a verified certificate on which no user was proved (see Proved).
	// With one more, the one that was used longest ago is closed, from the address that has too many or the most. Default 8192 and 2048.
	MaxAnonymous, MaxAnonymousPerIP int
	// MaxKnown bounds all other connections, MaxPerUser those of one user from one address. With one more, the one that is idle for the
	// longest is closed, of the user that has too many or the most. A user whose connections are all in use gets no more. Default 16384
	// and 4096.
	MaxKnown, MaxPerUser int
	// StrangerTime is how long a gRPC client without a certificate, which may only join, keeps its connection. Default 2 min.
	StrangerTime time.Duration
}

// Validate reports every fault at once.
func (c PortConfig) Validate() error {
	var faults []error
	need := func(ok bool, what string) {
		if !ok {
			faults = append(faults, errors.New("peer: port: "+what))
		}
	}
	need(c.Listener != nil, "Listener is required")
	need(c.Certificate != nil, "Certificate is required")
	need(c.Roots != nil, "Roots is required")
	need(c.MaxHandshakes > 0 && c.MaxComputing > 0, "limits of handshakes must be positive")
	need(c.MaxAnonymous > 0 && c.MaxAnonymousPerIP > 0, "limits of anonymous connections must be positive")
	need(c.MaxKnown > 0 && c.MaxPerUser > 0, "limits of known connections must be positive")
	need(c.HandshakeTimeout > 0 && c.HandshakeWait > 0 && c.StrangerTime > 0, "times must be positive")
	return errors.Join(faults...)
}

func (c PortConfig) withDefaults() PortConfig {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.MaxHandshakes, 4096)
	def(&c.MaxComputing, max(4, 2*runtime.GOMAXPROCS(0)))
	def(&c.MaxAnonymous, 8192)
	def(&c.MaxAnonymousPerIP, 2048)
	def(&c.MaxKnown, 16384)
	def(&c.MaxPerUser, 4096)
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, 5*time.Second)
	c.HandshakeWait = cmp.Or(c.HandshakeWait, 10*time.Second)
	c.StrangerTime = cmp.Or(c.StrangerTime, 2*time.Minute)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.MinVersion == 0 {
		c.MinVersion = tls.VersionTLS12
	}
	if c.Hints == nil {
		c.Hints = c.Roots
	}
	return c
}

// Port is the server's one TCP port. See the picture in the package comment.
type Port struct {
	cfg    PortConfig
	refuse *logLimit
	gate   *gate
	rest   *handoff
	grpc   *handoff
	tls    *tls.Config // holds the keys of session tickets
	done   chan struct{}
	wg     sync.WaitGroup

	mu     sync.Mutex
	routes map[string]route
}

// route is the certificate and the handler for connections of one ALPN name.
type route struct {
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	serve       func(*tls.Conn)
}

// NewPort returns a port that does not accept before Run.
func NewPort(cfg PortConfig) (*Port, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Port{
		cfg: cfg, refuse: newLogLimit(cfg.Logger.With("component", "port")), gate: newGate(cfg),
		rest: newHandoff(cfg.Listener.Addr()), grpc: newHandoff(cfg.Listener.Addr()),
		done: make(chan struct{}), routes: map[string]route{},
	}
	p.tls = &tls.Config{MinVersion: cfg.MinVersion, GetConfigForClient: p.choose}
	return p, nil
}

// REST returns the listener for net/http. Its connections are *tls.Conn whose handshake is done, with "h2", "http/1.1" or nothing
// negotiated. A client's certificate was requested and not verified. Accept waits until the listener is closed, which http.Server does;
// the end of Run alone does not end it, so that requests under way may finish.
func (p *Port) REST() net.Listener { return p.rest }

// GRPC returns the listener for a grpc.Server with ServerCredentials. Its connections are *tls.Conn whose handshake is done. A client's
// certificate, if there is one, was verified, and the connection ends when the certificate expires. Accept behaves as in REST.
func (p *Port) GRPC() net.Listener { return p.grpc }

// Handle makes serve handle the connections that negotiate alpn, each on its own goroutine and with a verified client certificate. serve
// owns the connection; the end of Run closes it and waits for serve to return.
func (p *Port) Handle(alpn string, serve func(*tls.Conn)) {
	p.route(alpn, route{certificate: p.cfg.Certificate, serve: serve})
}

func (p *Port) route(alpn string, r route) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.routes[alpn] = r
}

// Run accepts until ctx ends. Then it closes the socket, the handshakes under way and the connections of Handle, and waits for them. The
// servers of REST and GRPC close their own connections. A port runs once.
func (p *Port) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = p.cfg.Listener.Close() })
	defer stop()
	err := p.accept(ctx)
	_ = p.cfg.Listener.Close()
	close(p.done)
	p.gate.close()
	p.wg.Wait()
	return err
}

// accept accepts connections until the socket is closed. It retries after other errors, such as a lack of file descriptors.
func (p *Port) accept(ctx context.Context) error {
	const first, most = 5 * time.Millisecond, time.Second
	wait := first
	for {
		raw, err := p.cfg.Listener.Accept()
		switch {
		case err == nil:
			wait = first
			p.enter(raw)
			continue
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("peer: accept: %w", err)
		}
		p.refuse.refused(p.cfg.Listener.Addr().String(), "accept", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = min(2*wait, most)
	}
}

// enter starts the handshake of an accepted connection.
func (p *Port) enter(raw net.Conn) {
	c := &portConn{Conn: raw, gate: p.gate, ip: remoteIP(raw)}
	c.greeting = &greeting{began: time.Now(), turn: make(chan bool, 1)}
	evicted, ok := p.gate.admit(c)
	if evicted != nil {
		_ = evicted.Conn.Close()
	}
	if evicted != nil || !ok {
		p.refuse.refused(c.ip.String(), "handshake", errCrowded)
	}
	if !ok {
		_ = raw.Close()
		return
	}
	p.wg.Go(func() {
		if fault.Do("port", func() {
			fault.Point("port/handshake")
			p.handshake(c)
		}) != nil {
			if c.greeting != nil {
				p.gate.releaseTurn(c)
			}
			_ = c.Close()
		}
	})
}

var (
	errCrowded   = errors.New("peer: too many connections whose handshake is not done")
	errAnonymous = errors.New("peer: too many connections without a verified certificate")
	errKnown     = errors.New("peer: too many connections of one user")
)

// handshake does the TLS handshake and hands the connection to its handler or listener.
func (p *Port) handshake(c *portConn) {
	_ = c.SetDeadline(c.greeting.began.Add(p.cfg.HandshakeTimeout))
	t := tls.Server(c, p.tls)
	err := t.Handshake()
	p.gate.releaseTurn(c)
	c.greeting = nil
	if err != nil {
		_ = c.Close()
		if !c.evicted.Load() {
			p.refuse.logAt(slog.LevelInfo, c.ip.String(), "handshake", err)
		}
		return
	}
	state := t.ConnectionState()
	verified := p.verified(state)
	if verified {
		c.shown = state.PeerCertificates
	}
	if c.route != nil {
		tuneConn(c.Conn)
		if p.setRole(c, roleHandled, state) {
			_ = c.SetDeadline(time.Time{})
			c.route.serve(t)
		}
		return
	}
	listener, role := p.rest, roleAnonymous
	if verified {
		role = roleKnown
	}
	if c.grpc {
		listener = p.grpc
	}
	if !p.setRole(c, role, state) {
		return
	}
	_ = c.SetDeadline(time.Time{})
	if c.grpc {
		c.expireAt(p.grpcEnd(state))
	}
	if err := p.hand(listener, t, p.cfg.HandshakeTimeout); err != nil {
		_ = c.Close()
	}
}

// setRole finds a place for the connection after its handshake, or closes it and returns false.
func (p *Port) setRole(c *portConn, to role, state tls.ConnectionState) bool {
	user := ""
	if to != roleAnonymous {
		user = state.PeerCertificates[0].Subject.CommonName
	}
	evicted, ok := p.gate.setRole(c, to, user)
	if !ok {
		evicted = c
	}
	if evicted != nil {
		_ = evicted.Close()
		kind, err := "anonymous connection", errAnonymous
		if to != roleAnonymous {
			kind, err = "connection", errKnown
		}
		p.refuse.refused(evicted.ip.String(), kind, err)
	}
	return ok
}

// grpcEnd returns when a gRPC client's connection ends: when its certificate expires, or after StrangerTime without one.
func (p *Port) grpcEnd(s tls.ConnectionState) time.Time {
	if len(s.VerifiedChains) == 0 {
		return time.Now().Add(p.cfg.StrangerTime)
	}
	return s.VerifiedChains[0][0].NotAfter
}

// hand gives t to the listener's server. It waits at most that long, and not beyond the end of Run.
func (p *Port) hand(to *handoff, t *tls.Conn, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case to.conn <- t:
		return nil
	case <-to.done:
		return net.ErrClosed
	case <-p.done:
		return net.ErrClosed
	case <-timer.C:
		return context.DeadlineExceeded
	}
}

// choose returns the TLS configuration for a client, by the protocols that it offers.
func (p *Port) choose(h *tls.ClientHelloInfo) (*tls.Config, error) {
	c := h.Conn.(*portConn)
	roots := p.cfg.Roots()
	p.mu.Lock()
	for _, alpn := range h.SupportedProtos {
		if r, ok := p.routes[alpn]; ok {
			p.mu.Unlock()
			c.route = &r
			return &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: []string{alpn}, GetCertificate: r.certificate,
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots, SessionTicketsDisabled: true,
			}, nil
		}
	}
	p.mu.Unlock()
	if slices.Equal(h.SupportedProtos, []string{"h2"}) {
		c.grpc = true
		return &tls.Config{
			MinVersion: p.cfg.MinVersion, CipherSuites: p.cfg.CipherSuites, NextProtos: []string{"h2"}, GetCertificate: p.cfg.Certificate,
			ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: roots, SessionTicketsDisabled: true,
		}, nil
	}
	return &tls.Config{
		MinVersion: p.cfg.MinVersion, CipherSuites: p.cfg.CipherSuites, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: p.cfg.Certificate,
		ClientAuth: tls.RequestClientCert, ClientCAs: p.cfg.Hints(),
	}, nil
}

// verified reports whether the client's certificate is signed by the cluster's CA or by an authority of Hints.
func (p *Port) verified(s tls.ConnectionState) bool {
	if len(s.VerifiedChains) > 0 || len(s.PeerCertificates) == 0 {
		return len(s.VerifiedChains) > 0
	}
	return clientVerifies(s.PeerCertificates, p.cfg.Hints())
}
