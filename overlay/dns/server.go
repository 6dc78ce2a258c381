package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/fault"
)

const (
	connectionsAtOnce = 256
	connectionsOfOne  = 32
	tcpTimeout        = 5 * time.Second
)

// Config configures a Server.
type Config struct {
	Zone *Zone
	// Listen are the addresses to serve; they need not exist yet.
	Listen []netip.AddrPort
	// Upstreams returns the host's resolvers ("address:port"), for names outside the zone that Settings say nothing about.
	Upstreams func() []string
	// Enter runs a function in the network namespace to serve; nil is the namespace of the process.
	Enter  func(func() error) error
	Logger *slog.Logger
}

// Server answers queries.
type Server struct {
	cfg     Config
	forward *forwarder
	ready   chan struct{}
	started func() // closes ready, once
}

// NewServer returns a server that listens once Run is called.
func NewServer(cfg Config) *Server {
	if cfg.Enter == nil {
		cfg.Enter = func(fn func() error) error { return fn() }
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Server{cfg: cfg, ready: make(chan struct{})}
	s.started = sync.OnceFunc(func() { close(s.ready) })
	s.forward = newForwarder(cfg.Upstreams, s.dial)
	for _, at := range cfg.Listen {
		cfg.Zone.servers = append(cfg.Zone.servers, at.Addr().Unmap())
	}
	return s
}

// Set replaces the settings for names outside the zone. It may be called from any goroutine.
func (s *Server) Set(settings Settings) { s.forward.set(&settings) }

// Ready is closed when every address is being served.
func (s *Server) Ready() <-chan struct{} { return s.ready }

func (s *Server) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = s.cfg.Enter(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// sockets are the sockets on which a server listens.
type sockets struct {
	udp []*datagrams
	tcp []*dns.Server
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	open, err := s.listen(ctx)
	if err != nil {
		return err
	}
	var running, started sync.WaitGroup
	failed := make(chan error, len(open.udp)+len(open.tcp))
	for _, d := range open.udp {
		running.Go(func() { failed <- fault.Contain("overlay/dns", func() error { return d.run(ctx) }) })
	}
	for _, server := range open.tcp {
		started.Add(1)
		server.NotifyStartedFunc = started.Done
		running.Go(func() { failed <- fault.Contain("overlay/dns", server.ActivateAndServe) })
	}
	started.Wait()
	s.started()
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case err = <-failed:
	}
	cancel()
	stop, end := context.WithTimeout(context.WithoutCancel(ctx), tcpTimeout)
	defer end()
	for _, server := range open.tcp {
		err = errors.Join(err, server.ShutdownContext(stop))
	}
	running.Wait()
	s.forward.running.Wait()
	return err
}

// listen opens every socket, or none.
func (s *Server) listen(ctx context.Context) (*sockets, error) {
	lc, open := net.ListenConfig{Control: freebind}, &sockets{}
	err := s.cfg.Enter(func() error {
		for _, at := range s.cfg.Listen {
			udp, err := lc.ListenPacket(ctx, "udp", at.String())
			if err != nil {
				return err
			}
			open.udp = append(open.udp, newDatagrams(s, udp.(*net.UDPConn)))
			tcp, err := lc.Listen(ctx, "tcp", at.String())
			if err != nil {
				return err
			}
			open.tcp = append(open.tcp, &dns.Server{
				Listener: newLimited(tcp), Handler: s.stream(ctx), MsgAcceptFunc: acceptQueries,
				ReadTimeout: tcpTimeout, WriteTimeout: tcpTimeout, IdleTimeout: func() time.Duration { return tcpTimeout },
			})
		}
		return nil
	})
	if err == nil {
		return open, nil
	}
	for _, d := range open.udp {
		err = errors.Join(err, d.conn.Close())
	}
	for _, server := range open.tcp {
		err = errors.Join(err, server.Listener.Close())
	}
	return nil, fmt.Errorf("dns: %w", err)
}

// acceptQueries accepts every message that is no response; begin checks the rest.
func acceptQueries(h dns.Header) dns.MsgAcceptAction {
	if h.Bits&(1<<15) != 0 { // a response
		return dns.MsgIgnore
	}
	return dns.MsgAccept
}

// freebind lets a socket be bound before its address exists, so that the socket survives when the link is deleted and made
// again.
func freebind(_, _ string, c syscall.RawConn) error {
	var inner error
	err := c.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
	return errors.Join(err, inner)
}

// stream answers the queries of a TCP connection in order.
func (s *Server) stream(ctx context.Context) dns.HandlerFunc {
	return func(w dns.ResponseWriter, r *dns.Msg) {
		var m *dns.Msg
		if fault.Do("overlay/dns", func() { m = s.reply(ctx, addressOf(w.RemoteAddr()), r) }) != nil || m == nil {
			return
		}
		wire, err := pack(m, dns.MaxMsgSize)
		if err == nil {
			_, err = w.Write(wire)
		}
		if err != nil {
			s.cfg.Logger.Debug("cannot send a DNS answer", "to", w.RemoteAddr().String(), "err", err)
		}
	}
}

func addressOf(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// limited is a listener that bounds the open connections in all and of one client.
type limited struct {
	net.Listener

	mu      sync.Mutex
	open    int
	clients map[netip.Addr]int
}

func newLimited(l net.Listener) *limited {
	return &limited{Listener: l, clients: make(map[netip.Addr]int)}
}

// Accept implements net.Listener; connections past the limits are closed at once.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := addressOf(c.RemoteAddr())
		if l.enter(client) {
			return &limitedConn{Conn: c, release: sync.OnceFunc(func() { l.leave(client) })}, nil
		}
		c.Close()
	}
}

func (l *limited) enter(client netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= connectionsAtOnce || l.clients[client] >= connectionsOfOne {
		return false
	}
	l.open++
	l.clients[client]++
	return true
}

func (l *limited) leave(client netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.clients[client]--; l.clients[client] == 0 {
		delete(l.clients, client)
	}
}

type limitedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
