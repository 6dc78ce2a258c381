package tunnel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/fault"
)

// Server is one to be connected to.
type Server struct {
	ID   string // stays the same when the address changes
	Addr string // host:port of its one port
	Live bool   // as far as the source of the list knows
}

// Config says how this node connects to servers, and what servers may reach through it.
type Config struct {
	// Connect makes the TLS handshake on a connection to a server, which proves the identity of both ends. It ends with ctx.
	Connect func(ctx context.Context, c net.Conn) (net.Conn, error)
	// Carry serves the server's requests until the connection ends or ctx does, closes the connection, and returns why. It
	// calls welcome when the server has accepted the connection. An error with a method Unwanted() bool that returns true
	// makes the pauses grow although the connection was accepted.
	Carry func(ctx context.Context, c net.Conn, dial func(ctx context.Context, target string) (net.Conn, error), welcome func()) error
	Rules Rules
	// Dial connects to a server's address. Default: a net.Dialer whose connections end within 25 s after the server's machine
	// is gone.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Shake bounds connecting, handshake included. Default 10 s.
	Shake time.Duration
	// First and Last bound the pauses between attempts. Each pause is twice as long as the one before, and a random part of
	// up to the same length is added. Defaults 100 ms and 15 s. Unwanted replaces Last for a server that refuses this node's
	// connection; default 1 min.
	First, Last, Unwanted time.Duration
	Logger                *slog.Logger
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	if c.Connect == nil || c.Carry == nil {
		errs = append(errs, errors.New("tunnel: Config.Connect and Config.Carry must be set"))
	}
	if !c.Rules.Kubelet.IsValid() {
		errs = append(errs, errors.New("tunnel: Config.Rules.Kubelet must be set"))
	}
	if c.Shake < 0 || c.First < 0 || c.Last < 0 || c.Unwanted < 0 {
		errs = append(errs, errors.New("tunnel: Config has a negative duration"))
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Shake, 10*time.Second)
	def(&c.First, 100*time.Millisecond)
	def(&c.Last, 15*time.Second)
	def(&c.Unwanted, time.Minute)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Dial == nil {
		d := net.Dialer{
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
			Control:         giveUpUnacked,
		}
		c.Dial = d.DialContext
	}
	return c
}

// giveUpUnacked is a net.Dialer's Control. It ends a connection whose data is not acknowledged for 15 s; TCP would send it
// again for a quarter of an hour.
func giveUpUnacked(_, _ string, raw syscall.RawConn) error {
	var err error
	if ctl := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int((15 * time.Second).Milliseconds()))
	}); ctl != nil {
		return ctl
	}
	return err
}

// Agent keeps the connections.
type Agent struct {
	cfg Config

	mu      sync.Mutex
	servers map[string]Server
	changed chan struct{}
}

// New starts nothing.
func New(cfg Config) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Agent{cfg: cfg.withDefaults(), changed: make(chan struct{}, 1)}, nil
}

// Update replaces the list of servers. Connections to those that are not in it any more, or elsewhere, end.
func (a *Agent) Update(list []Server) {
	next := make(map[string]Server, len(list))
	for _, s := range list {
		next[s.ID] = s
	}
	a.mu.Lock()
	a.servers = next
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// keeper keeps the connection to one server.
type keeper struct {
	server Server
	stop   context.CancelFunc
	back   chan struct{} // holds a token when the server is said to be alive again
}

// Run keeps the connections until ctx ends, and returns when all are closed.
func (a *Agent) Run(ctx context.Context) error {
	keepers := map[string]*keeper{}
	var all sync.WaitGroup
	defer all.Wait()
	for {
		a.mu.Lock()
		servers := a.servers
		a.mu.Unlock()
		for id, k := range keepers {
			if s, there := servers[id]; !there || s.Addr != k.server.Addr {
				k.stop()
				delete(keepers, id)
			}
		}
		for id, s := range servers {
			k := keepers[id]
			if k == nil {
				running, stop := context.WithCancel(ctx)
				k = &keeper{server: s, stop: stop, back: make(chan struct{}, 1)}
				keepers[id] = k
				all.Go(func() {
					defer stop()
					fault.KeepDo(running, "node/tunnel", func(ctx context.Context) { a.keep(ctx, s.Addr, k.back) })
				})
			} else if s.Live && !k.server.Live {
				select {
				case k.back <- struct{}{}:
				default:
				}
			}
			k.server.Live = s.Live
		}
		select {
		case <-a.changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// keep connects to a server again and again until ctx ends.
func (a *Agent) keep(ctx context.Context, addr string, back <-chan struct{}) {
	told, pause := "", a.cfg.First
	for {
		welcome := false
		err := fault.Contain("node/tunnel", func() error {
			fault.Point("node/tunnel")
			return a.once(ctx, addr, func() { welcome = true })
		})
		if ctx.Err() != nil {
			return
		}
		var unwanted interface{ Unwanted() bool }
		switch {
		case errors.As(err, &unwanted) && unwanted.Unwanted():
			pause = min(2*pause, a.cfg.Unwanted) // it may just not have heard of this node yet
		case welcome:
			told, pause = "", a.cfg.First
		default:
			pause = min(2*pause, a.cfg.Last)
		}
		if reason := err.Error(); reason != told {
			told = reason
			a.cfg.Logger.Debug("the tunnel to a server is down; the server cannot reach this node through it until the next attempt", "server", addr, "err", err, "again_in", pause)
		}
		timer := time.NewTimer(pause + rand.N(pause))
		select {
		case <-ctx.Done():
		case <-back:
			pause = a.cfg.First
		case <-timer.C:
		}
		timer.Stop()
	}
}

// once connects to a server and carries for it until that is over; it returns why.
func (a *Agent) once(ctx context.Context, addr string, welcome func()) error {
	shaking, cancel := context.WithTimeout(ctx, a.cfg.Shake)
	defer cancel()
	raw, err := a.cfg.Dial(shaking, "tcp", addr)
	if err != nil {
		return err
	}
	c, err := a.cfg.Connect(shaking, raw)
	if err != nil {
		_ = raw.Close()
		return fmt.Errorf("handshake: %w", err)
	}
	return a.cfg.Carry(ctx, c, a.cfg.Rules.Dial, welcome)
}
