package mux

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/balsahq/balsa/fault"
)

const (
	helloTime = 10 * time.Second
	// flushTime is how long data written before a stream's end may take to reach its target.
	flushTime = 10 * time.Second
)

// Bye is the error of a connection that the server refused or ended, with its reason.
type Bye string

// Error implements error.
func (b Bye) Error() string { return "the server does not want this connection: " + string(b) }

// Unwanted reports that connecting again soon is useless.
func (b Bye) Unwanted() bool { return true }

// CarryConfig configures the node's end of a connection.
type CarryConfig struct {
	// Conn is the connection, its handshake done. Carry closes it.
	Conn net.Conn
	// Dial connects to a stream's target. The text of its error is shown to users of the server. It ends with ctx.
	Dial func(ctx context.Context, target string) (net.Conn, error)
	// MaxStreams bounds the open streams. Default 1024.
	MaxStreams int
	// Welcome, if set, is called when the server's hello has arrived.
	Welcome func()
}

// Carry serves the opener's requests until the connection or ctx ends. It returns the reason after all streams are closed.
// The error is a Bye if the server ended the connection.
func Carry(ctx context.Context, cfg CarryConfig) error {
	if cfg.MaxStreams <= 0 {
		cfg.MaxStreams = 1024
	}
	c := &carrier{cfg: cfg, link: newLink(cfg.Conn)}
	defer context.AfterFunc(ctx, func() { c.link.fail(ctx.Err()) })()
	carrying, stop := context.WithCancel(ctx)
	defer c.all.Wait()
	defer stop()
	if err := cfg.Conn.SetReadDeadline(time.Now().Add(helloTime)); err != nil {
		c.link.fail(err)
		return err
	}
	return c.link.read(func(f frame) error { return c.handle(carrying, f) })
}

type carrier struct {
	cfg     CarryConfig
	link    *link
	all     sync.WaitGroup
	welcome bool // only the reading goroutine uses it
}

func (c *carrier) handle(ctx context.Context, f frame) error {
	switch {
	case f.kind == kindBye:
		return Bye(f.payload)
	case f.kind == kindHello && !c.welcome:
		c.welcome = true
		if c.cfg.Welcome != nil {
			c.cfg.Welcome()
		}
		return c.cfg.Conn.SetReadDeadline(time.Time{})
	case !c.welcome || f.kind == kindHello:
		return violation("frame of kind %d, no hello before or another one", f.kind)
	case f.kind == kindPing:
		return c.link.send(nil, kindPong, 0, nil)
	case f.kind == kindOpen:
		return c.open(ctx, f.stream, string(f.payload))
	}
	return c.link.common(f)
}

func (c *carrier) open(ctx context.Context, id uint32, target string) error {
	if s, _ := c.link.find(id); s != nil {
		return violation("stream %d is open", id)
	}
	c.link.number(id)
	s := newStream(c.link, id, target)
	if c.link.count() >= c.cfg.MaxStreams {
		return c.link.send(nil, kindRefused, id, clip(ErrBusy.Error()))
	}
	if c.link.add(s) {
		c.all.Go(func() {
			if err := fault.Do("node/tunnel stream", func() {
				fault.Point("node/tunnel stream")
				c.carry(ctx, s)
			}); err != nil {
				_ = c.link.send(nil, kindRefused, s.id, clip(err.Error())) // of an open stream this is its end
				_ = s.Close()
			}
		})
	}
	return nil
}

// carry connects a stream to its target and copies in both directions until both have ended.
func (c *carrier) carry(ctx context.Context, s *stream) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.whenGone(cancel) // the opener may give up
	conn, err := c.cfg.Dial(ctx, s.target)
	if err != nil {
		abandoned := isClosed(s.gone)
		if s.forget(); !abandoned {
			_ = c.link.send(nil, kindRefused, s.id, clip(err.Error()))
		}
		return
	}
	// The opener no longer reads; data that it sent before is still delivered.
	s.whenGone(func() { _ = conn.SetDeadline(time.Now().Add(flushTime)) })
	if c.link.send(nil, kindOpened, s.id, nil) == nil {
		c.pump(s, conn)
	}
	_ = conn.Close()
	_ = s.Close()
}

// pump copies in both directions and returns when both have ended.
func (c *carrier) pump(s *stream, conn net.Conn) {
	back := make(chan struct{})
	c.all.Go(fault.Contained("node/tunnel stream", func() {
		defer close(back)
		if _, err := copyTo(s, conn); err != nil && !errors.Is(err, net.ErrClosed) {
			_ = s.close(plain(err))
		} else {
			_ = s.CloseWrite()
		}
	}))
	_, err := copyTo(conn, s)
	half, ok := conn.(interface{ CloseWrite() error })
	if err != nil || !ok {
		_ = conn.Close()
		<-back
		return
	}
	_ = half.CloseWrite()
	select {
	case <-back:
	case <-s.gone:
		_ = conn.Close()
		<-back
	}
}

// plain returns the text of an error without this machine's own address.
func plain(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	return err.Error()
}

// copyTo copies until from ends, through a buffer of one frame, because neither end supports larger transfers.
func copyTo(to io.Writer, from io.Reader) (int64, error) {
	buf := buffers.Get().(*[headerSize + maxPayload]byte)
	defer buffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buf[:maxPayload])
}
