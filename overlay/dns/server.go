package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

const (
	queriesAtOnce     = 1024
	connectionsAtOnce = 256
	tcpTimeout        = 5 * time.Second
)

// Config is what a Server needs.
type Config struct {
	Zone *Zone
	// Listen are the addresses to serve; they need not exist yet.
	Listen []netip.AddrPort
	// Upstreams returns the resolvers ("address:port") for names outside the zone.
	Upstreams func() []string
	// Enter runs a function in the network namespace to serve; nil is that of the process.
	Enter  func(func() error) error
	Logger *slog.Logger
}

// Server answers queries.
type Server struct {
	cfg     Config
	forward *forwarder
	slots   chan struct{}
	ready   chan struct{}
	started func() // closes ready, once
}

// NewServer makes a server; it serves in Run.
func NewServer(cfg Config) *Server {
	if cfg.Enter == nil {
		cfg.Enter = func(fn func() error) error { return fn() }
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Server{cfg: cfg, slots: make(chan struct{}, queriesAtOnce), ready: make(chan struct{})}
	s.started = sync.OnceFunc(func() { close(s.ready) })
	s.forward = &forwarder{
		upstreams: cfg.Upstreams, dial: s.dial, now: time.Now,
		slots: make(chan struct{}, forwardsAtOnce), cache: make(map[dns.Question]cached),
	}
	return s
}

// Ready is closed when every address is being served.
func (s *Server) Ready() <-chan struct{} { return s.ready }

func (s *Server) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = s.cfg.Enter(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	servers, err := s.listen(ctx)
	if err != nil {
		return err
	}
	var running, started sync.WaitGroup
	failed := make(chan error, len(servers))
	started.Add(len(servers))
	for _, server := range servers {
		server.NotifyStartedFunc = started.Done
		running.Go(func() { failed <- server.ActivateAndServe() })
	}
	started.Wait()
	s.started()
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case err = <-failed:
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), tcpTimeout)
	defer cancel()
	for _, server := range servers {
		err = errors.Join(err, server.ShutdownContext(stop))
	}
	running.Wait()
	return err
}

// listen opens every socket, or none.
func (s *Server) listen(ctx context.Context) (servers []*dns.Server, err error) {
	lc := net.ListenConfig{Control: freebind}
	err = s.cfg.Enter(func() error {
		for _, at := range s.cfg.Listen {
			udp, err := lc.ListenPacket(ctx, "udp", at.String())
			if err != nil {
				return err
			}
			servers = append(servers, &dns.Server{PacketConn: udp, Handler: s.handler(ctx), UDPSize: dns.DefaultMsgSize})
			tcp, err := lc.Listen(ctx, "tcp", at.String())
			if err != nil {
				return err
			}
			servers = append(servers, &dns.Server{
				Listener: &limited{Listener: tcp, slots: make(chan struct{}, connectionsAtOnce)}, Handler: s.handler(ctx),
				ReadTimeout: tcpTimeout, WriteTimeout: tcpTimeout, IdleTimeout: func() time.Duration { return tcpTimeout },
			})
		}
		return nil
	})
	if err == nil {
		return servers, nil
	}
	for _, server := range servers {
		if server.PacketConn != nil {
			err = errors.Join(err, server.PacketConn.Close())
		}
		if server.Listener != nil {
			err = errors.Join(err, server.Listener.Close())
		}
	}
	return nil, fmt.Errorf("dns: %w", err)
}

// freebind lets a socket be bound before its address is there, so that a link that is made again needs no new socket.
func freebind(_, _ string, c syscall.RawConn) error {
	var inner error
	err := c.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
	return errors.Join(err, inner)
}

// handler answers as many queries at once as allowed and drops the rest.
func (s *Server) handler(ctx context.Context) dns.HandlerFunc {
	return func(w dns.ResponseWriter, r *dns.Msg) {
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		default:
			return
		}
		m := s.Reply(ctx, r)
		if m == nil {
			return
		}
		if _, tcp := w.RemoteAddr().(*net.TCPAddr); !tcp {
			m.Truncate(datagramSize(r))
		}
		if err := w.WriteMsg(m); err != nil {
			s.cfg.Logger.Debug("dns answer not sent", "to", w.RemoteAddr().String(), "err", err)
		}
	}
}

// datagramSize is what the client can take.
func datagramSize(r *dns.Msg) int {
	if opt := r.IsEdns0(); opt != nil {
		return int(min(max(opt.UDPSize(), dns.MinMsgSize), 1232))
	}
	return dns.MinMsgSize
}

// Reply makes the answer to a message; nil when it deserves none.
func (s *Server) Reply(ctx context.Context, r *dns.Msg) *dns.Msg {
	if r.Response {
		return nil
	}
	m := new(dns.Msg)
	m.SetReply(r)
	m.Compress, m.RecursionAvailable = true, true
	if opt := r.IsEdns0(); opt != nil {
		m.SetEdns0(1232, false)
	}
	switch {
	case r.Opcode != dns.OpcodeQuery:
		m.Rcode = dns.RcodeNotImplemented
	case len(r.Question) != 1:
		m.Rcode = dns.RcodeFormatError
	case r.Question[0].Qclass != dns.ClassINET:
		m.Rcode = dns.RcodeRefused
	default:
		s.fill(ctx, r, m)
	}
	return m
}

func (s *Server) fill(ctx context.Context, r, m *dns.Msg) {
	q := r.Question[0]
	a := s.cfg.Zone.Answer(q)
	if !a.Ours {
		s.relay(ctx, r, m)
		return
	}
	m.Authoritative = true
	m.Answer, m.Extra = append(m.Answer, shuffled(a.Records)...), append(m.Extra, a.Extra...)
	if a.Alias != "" && (q.Qtype == dns.TypeA || q.Qtype == dns.TypeAAAA) {
		s.follow(ctx, m, dns.Question{Name: a.Alias, Qtype: q.Qtype, Qclass: q.Qclass})
	}
	if !a.Exists {
		m.Rcode = dns.RcodeNameError
	}
	if len(m.Answer) == 0 {
		m.Ns = append(m.Ns, s.cfg.Zone.soa())
	}
}

// follow adds what an alias leads to, as far as it can be found.
func (s *Server) follow(ctx context.Context, m *dns.Msg, q dns.Question) {
	if a := s.cfg.Zone.Answer(q); a.Ours {
		m.Answer = append(m.Answer, a.Records...)
		return
	}
	ask := new(dns.Msg)
	ask.SetQuestion(q.Name, q.Qtype)
	if answer, err := s.forward.ask(ctx, ask); err == nil {
		m.Answer = append(m.Answer, answer.Answer...)
	}
}

func (s *Server) relay(ctx context.Context, r, m *dns.Msg) {
	answer, err := s.forward.ask(ctx, r)
	if err != nil {
		s.cfg.Logger.Debug("dns query not forwarded", "name", r.Question[0].Name, "err", err)
		m.Rcode = dns.RcodeServerFailure
		return
	}
	m.Rcode, m.Answer, m.Ns = answer.Rcode, answer.Answer, answer.Ns
}

// shuffled spreads clients that take the first address over all.
func shuffled(list []dns.RR) []dns.RR {
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// limited accepts only so many connections at once.
type limited struct {
	net.Listener
	slots chan struct{}
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			return &limitedConn{Conn: c, release: sync.OnceFunc(func() { <-l.slots })}, nil
		default:
			c.Close()
		}
	}
}

type limitedConn struct {
	net.Conn
	release func()
}

func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
