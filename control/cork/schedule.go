package cork

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"

	"golang.org/x/net/http2"

	"github.com/balsahq/balsa/fault"
)

// Configure makes web serve HTTP/2 as conf says. Connections that were accepted by a
// Listener hold back what they write while more is to come.
func Configure(web *http.Server, conf *http2.Server) error {
	if err := http2.ConfigureServer(web, conf); err != nil {
		return err
	}
	web.TLSNextProto[http2.NextProtoTLS] = func(hs *http.Server, c *tls.Conn, h http.Handler) {
		one := *conf // its state is shared
		var served net.Conn = c
		if conn := below(c); conn != nil {
			one.NewWriteScheduler = func() http2.WriteScheduler { return newScheduler(conn) }
			served = upper{c, conn}
		}
		var ctx context.Context
		if b, ok := h.(interface{ BaseContext() context.Context }); ok { // as net/http hands it on
			ctx = b.BaseContext()
		}
		one.ServeConn(served, &http2.ServeConnOpts{Context: ctx, Handler: h, BaseConfig: hs})
	}
	return nil
}

// scheduler tells a Conn whether another frame waits. It is of its connection's
// goroutine.
type scheduler struct {
	http2.WriteScheduler
	conn *Conn
	// What waits: its bytes, and one for a frame without. It may be less than there
	// is, for frames of streams that are closed.
	streams map[uint32]int
	total   int
	open    int // streams
}

func newScheduler(conn *Conn) *scheduler {
	// Which stream comes first is left to chance: with a queue for those only that have a
	// frame, thousands of quiet watches cost nothing.
	return &scheduler{WriteScheduler: http2.NewRandomWriteScheduler(), conn: conn, streams: map[uint32]int{}}
}

// OpenStream implements http2.WriteScheduler.
func (s *scheduler) OpenStream(id uint32, options http2.OpenStreamOptions) {
	s.open++
	s.conn.shared.Store(s.open > 1)
	s.WriteScheduler.OpenStream(id, options)
}

// Push implements http2.WriteScheduler. While a frame is written, another one waits.
func (s *scheduler) Push(wr http2.FrameWriteRequest) {
	n := max(1, wr.DataSize())
	s.streams[wr.StreamID()] += n
	s.total += n
	s.conn.hold(true)
	s.WriteScheduler.Push(wr)
}

// Pop implements http2.WriteScheduler.
func (s *scheduler) Pop() (http2.FrameWriteRequest, bool) {
	wr, ok := s.WriteScheduler.Pop()
	if !ok {
		s.conn.hold(false)
		if s.conn.holds.Load() {
			go fault.Contained("control/cork", func() { _ = s.conn.let() })() // which may take as long as the client likes
		}
		return wr, false
	}
	s.drop(wr.StreamID(), max(1, wr.DataSize()))
	s.conn.hold(s.total > 0)
	return wr, true
}

// CloseStream implements http2.WriteScheduler.
func (s *scheduler) CloseStream(id uint32) {
	s.open--
	s.conn.shared.Store(s.open > 1)
	s.drop(id, s.streams[id])
	s.WriteScheduler.CloseStream(id)
}

func (s *scheduler) drop(id uint32, n int) {
	left := s.streams[id]
	n = min(n, left)
	s.total -= n
	if n == left {
		delete(s.streams, id)
		return
	}
	s.streams[id] = left - n
}
