package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/balsahq/balsa/fault"
)

// BalancerConfig is what a Balancer needs.
type BalancerConfig struct {
	// Listener accepts connections of programs on this machine; Run closes it. It should listen on loopback: the balancer
	// authenticates no client, the API server does.
	Listener net.Listener
	Set      *Set
	// MaxConns bounds the connections at one time; past it new ones are closed at once. Default 1024.
	MaxConns int
	// Drain is how long connections may go on when the balancer stops. Default 2 s.
	Drain time.Duration
	// Hello bounds how long a client may take to say what it wants. Default 10 s.
	Hello  time.Duration
	Logger *slog.Logger
}

// Validate reports every fault at once.
func (c BalancerConfig) Validate() error {
	var errs []error
	if c.Listener == nil {
		errs = append(errs, errors.New("servers: BalancerConfig.Listener must be set"))
	}
	if c.Set == nil {
		errs = append(errs, errors.New("servers: BalancerConfig.Set must be set"))
	}
	if c.MaxConns < 0 || c.Drain < 0 || c.Hello < 0 {
		errs = append(errs, errors.New("servers: BalancerConfig has a negative bound"))
	}
	return errors.Join(errs...)
}

// Balancer is one address for the API on this machine, whichever server lives. It passes TLS through untouched.
type Balancer struct {
	cfg   BalancerConfig
	slots chan struct{}
}

// NewBalancer returns a Balancer; it starts nothing.
func NewBalancer(cfg BalancerConfig) (*Balancer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 1024
	}
	if cfg.Drain == 0 {
		cfg.Drain = 2 * time.Second
	}
	if cfg.Hello == 0 {
		cfg.Hello = 10 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Balancer{cfg: cfg, slots: make(chan struct{}, cfg.MaxConns)}, nil
}

// Run serves until ctx ends, lets connections drain, and returns when none is left.
func (b *Balancer) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { b.cfg.Listener.Close() })()
	// Connections outlive ctx by the drain time.
	working, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	var all sync.WaitGroup
	defer all.Wait()
	for pause := time.Duration(0); ; {
		c, err := b.cfg.Listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			b.drain(&all, cut)
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("servers: balancer: %w", err)
		case err != nil: // such as too many open files: passes
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		}
		pause = 0
		select {
		case b.slots <- struct{}{}:
		default:
			c.Close()
			continue
		}
		all.Go(func() {
			defer func() { <-b.slots }()
			defer c.Close()
			if err := fault.Contain("node/balancer", func() error {
				fault.Point("node/balancer")
				return b.serve(ctx, working, c)
			}); err != nil {
				b.cfg.Logger.Debug("the balancer closed a client's connection", "client", c.RemoteAddr(), "err", err)
			}
		})
	}
}

// drain waits for the connections, and cuts those that take too long.
func (b *Balancer) drain(all *sync.WaitGroup, cut context.CancelFunc) {
	done := make(chan struct{})
	go fault.Contained("node/servers", func() { all.Wait(); close(done) })()
	timer := time.NewTimer(b.cfg.Drain)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		cut()
		<-done
	}
}

// answering is a server that has answered the ClientHello, and what it said first.
type answering struct {
	*conn
	first []byte
}

// serve finds a server for one client and copies until either side ends. accepting ends when no new connection is to be
// made, working when all are cut.
func (b *Balancer) serve(accepting, working context.Context, client net.Conn) error {
	defer context.AfterFunc(working, func() { client.Close() })()
	if err := client.SetReadDeadline(time.Now().Add(b.cfg.Hello)); err != nil {
		return err
	}
	stop := context.AfterFunc(accepting, func() { client.SetReadDeadline(time.Now()) })
	hello, err := readHello(client)
	stop()
	if err != nil {
		return fmt.Errorf("ClientHello: %w", err)
	}
	if err := client.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	server, err := race(working, b.cfg.Set, func(ctx context.Context, one Server) (answering, error) {
		return b.ask(ctx, one, hello)
	}, func(a answering) { a.Close() })
	if err != nil {
		return err
	}
	defer server.Close()
	defer context.AfterFunc(working, func() { server.Close() })()
	if _, err := client.Write(server.first); err != nil {
		return err
	}
	relay(client, server.conn)
	return nil
}

// ask sends the ClientHello to a server and waits for the first bytes of its answer.
func (b *Balancer) ask(ctx context.Context, one Server, hello []byte) (answering, error) {
	c, err := b.cfg.Set.connect(ctx, one)
	if err != nil {
		return answering{}, err
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })
	first := make([]byte, 4096)
	if _, err = c.Write(hello); err == nil {
		var n int
		n, err = c.Read(first)
		first = first[:n]
	}
	if !stop() { // another was faster
		err = errors.Join(err, ctx.Err())
	}
	if err != nil {
		c.Close()
		return answering{}, fmt.Errorf("no answer to a ClientHello: %w", err)
	}
	return answering{c, first}, nil
}

// relay copies both ways. The end of one direction is passed on; an error ends both.
func relay(client net.Conn, server *conn) {
	var both sync.WaitGroup
	pipe := func(to, from net.Conn) {
		if _, err := io.Copy(bare(to), bare(from)); err != nil {
			to.Close()
			from.Close()
			return
		}
		if half, ok := bare(to).(interface{ CloseWrite() error }); ok {
			half.CloseWrite()
		}
	}
	both.Go(fault.Contained("node/servers", func() { pipe(server, client) }))
	both.Go(fault.Contained("node/servers", func() { pipe(client, server) }))
	both.Wait()
}

// bare is the connection the kernel knows, which it can copy between by itself.
func bare(c net.Conn) net.Conn {
	if t, ok := c.(*conn); ok {
		return t.Conn
	}
	return c
}
