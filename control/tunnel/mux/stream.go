package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// keep is how large an empty stream's buffer may be and stay.
const keep = 64 << 10

// stream is one carried connection, a net.Conn with two halves that end apart.
type stream struct {
	link   *link
	id     uint32
	target string
	answer chan error    // of the node, nil for opened; only the opener's streams have it
	gone   chan struct{} // closed when nothing more can be sent: closed here, reset there, or the link is over
	turn   chan struct{} // has one token: whoever holds it is in Write or CloseWrite

	readable, writable    chan struct{} // hold a token when somebody should look again
	readUntil, writeUntil deadline

	mu         sync.Mutex
	isGone     bool
	onGone     func() // called once it is; nil: nobody
	closed     bool   // here
	opened     bool
	buf        []byte // received
	at         int    // how much of it was read
	mayCome    int    // bytes
	unreported int    // bytes read, for which no credit was given yet
	window     int    // how many may be under way to here
	granted    time.Time
	credit     int // bytes that may be sent
	gotEnd     bool
	sentEnd    bool
	err        error // of reading, once what came was read, and of writing
}

func newStream(l *link, id uint32, target string) *stream {
	return &stream{
		link: l, id: id, target: target, gone: make(chan struct{}), turn: make(chan struct{}, 1), mayCome: Window, window: Window, credit: Window,
		readable: make(chan struct{}, 1), writable: make(chan struct{}, 1), readUntil: newDeadline(), writeUntil: newDeadline(),
	}
}

var _ net.Conn = (*stream)(nil)

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Read implements net.Conn.
func (s *stream) Read(p []byte) (int, error) {
	for {
		n, grant, err := s.take(p)
		if grant > 0 {
			_ = s.link.send(nil, kindCredit, s.id, binary.BigEndian.AppendUint32(nil, uint32(grant))) // an error is the link's, and read next
		}
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		select {
		case <-s.readable:
		case <-s.readUntil.passed():
		}
	}
}

// take reads what is there; nothing and no error: wait. grant is the credit to give.
func (s *stream) take(p []byte) (n, grant int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		wake(s.readable) // the others who wait
		return 0, 0, s.fault("read", net.ErrClosed)
	case isClosed(s.readUntil.passed()):
		return 0, 0, s.fault("read", os.ErrDeadlineExceeded)
	case s.at < len(s.buf):
		n = copy(p, s.buf[s.at:])
		s.at += n
		s.unreported += n
		if s.at == len(s.buf) {
			s.buf, s.at = s.buf[:0], 0
			if cap(s.buf) > keep {
				s.buf = nil
			}
		} else {
			wake(s.readable) // for another reader
		}
		return n, s.grant(), nil
	case s.err != nil:
		wake(s.readable)
		return 0, 0, s.fault("read", s.err)
	case s.gotEnd:
		wake(s.readable)
		return 0, 0, io.EOF
	}
	return 0, 0, nil
}

// grant is the credit to give for what was read. The window of a reader that keeps up with a brisk writer grows: then
// it is the path that is long. s.mu is held.
func (s *stream) grant() int {
	if s.unreported < s.window/2 || s.gotEnd || s.err != nil {
		return 0
	}
	more, now := s.unreported, time.Now()
	if len(s.buf) == 0 && s.window < maxWindow && now.Sub(s.granted) < brisk && s.link.lend(s.window) {
		more += s.window
		s.window *= 2
	}
	s.unreported, s.granted = 0, now
	s.mayCome += more
	return more
}

// Write implements net.Conn.
func (s *stream) Write(p []byte) (int, error) {
	if err := s.myTurn(); err != nil {
		return 0, err
	}
	defer func() { <-s.turn }()
	sent := 0
	for {
		n, err := s.claim(len(p) - sent)
		if err != nil {
			return sent, err
		}
		if n == 0 && sent < len(p) {
			select {
			case <-s.writable:
			case <-s.writeUntil.passed():
			case <-s.gone:
			}
			continue
		}
		if n > 0 {
			if err := s.link.send(s.writeUntil.passed(), kindData, s.id, p[sent:sent+n]); err != nil {
				s.giveBack(n)
				return sent, s.fault("write", err)
			}
			sent += n
		}
		if sent == len(p) {
			return sent, nil
		}
	}
}

// myTurn waits for this writer's turn.
func (s *stream) myTurn() error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-s.writeUntil.passed():
		return s.fault("write", os.ErrDeadlineExceeded)
	}
}

// claim takes credit for up to want bytes; 0 and no error: wait.
func (s *stream) claim(want int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed, s.sentEnd:
		return 0, s.fault("write", net.ErrClosed)
	case isClosed(s.writeUntil.passed()):
		return 0, s.fault("write", os.ErrDeadlineExceeded)
	case s.err != nil:
		return 0, s.fault("write", s.err)
	case s.isGone:
		return 0, s.fault("write", syscall.EPIPE)
	}
	n := min(want, s.credit, maxPayload)
	s.credit -= n
	return n, nil
}

func (s *stream) giveBack(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.credit += n
}

// CloseWrite says that nothing more comes; reading goes on.
func (s *stream) CloseWrite() error {
	if err := s.myTurn(); err != nil {
		return err
	}
	defer func() { <-s.turn }()
	s.mu.Lock()
	quiet := s.closed || s.sentEnd || s.isGone
	s.sentEnd = true
	s.mu.Unlock()
	if quiet {
		return nil
	}
	return s.link.send(nil, kindEnd, s.id, nil)
}

// Close implements net.Conn. What was written is delivered; what comes is not read any more.
func (s *stream) Close() error { return s.close("") }

func (s *stream) close(why string) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	quiet := s.isGone || s.sentEnd && s.gotEnd
	s.closed, s.buf = true, nil
	s.link.lent.Add(-int64(s.window - Window))
	s.leave()
	s.mu.Unlock()
	s.link.remove(s.id)
	s.readUntil.set(time.Time{})
	s.writeUntil.set(time.Time{})
	if quiet {
		return nil
	}
	return s.link.send(nil, kindReset, s.id, clip(why))
}

// leave wakes everybody up. s.mu is held.
func (s *stream) leave() {
	if !s.isGone {
		s.isGone = true
		close(s.gone)
		if s.onGone != nil {
			s.onGone()
		}
	}
	wake(s.readable)
	wake(s.writable)
}

// whenGone has fn called once nothing more can be sent, instead of what was to be called before. fn must not wait.
func (s *stream) whenGone(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.onGone = fn; s.isGone {
		fn()
	}
}

// forget ends a stream of which the other end is told nothing.
func (s *stream) forget() {
	s.lost(net.ErrClosed)
	_ = s.close("")
}

// What the other end sends.

func (s *stream) data(p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.gotEnd:
		return violation("stream %d: data after its end", s.id)
	case len(p) > s.mayCome:
		return violation("stream %d: more data than it may send", s.id)
	case s.answer != nil && !s.opened:
		return violation("stream %d: data before it is open", s.id)
	}
	s.mayCome -= len(p)
	if s.closed {
		return nil
	}
	if s.at > 0 && len(s.buf)+len(p) > cap(s.buf) {
		s.buf = s.buf[:copy(s.buf, s.buf[s.at:])]
		s.at = 0
	}
	s.buf = append(s.buf, p...)
	wake(s.readable)
	return nil
}

func (s *stream) credited(p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	more := int(binary.BigEndian.Uint32(p))
	if more > maxWindow || s.credit+more > maxWindow {
		return violation("stream %d: more credit than a window", s.id)
	}
	s.credit += more
	wake(s.writable)
	return nil
}

func (s *stream) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gotEnd {
		return violation("stream %d ends twice", s.id)
	}
	s.gotEnd = true
	wake(s.readable)
	return nil
}

func (s *stream) reset(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why == "" {
		s.gotEnd = true
	} else if s.err == nil {
		s.err = errors.New(why)
	}
	s.leave()
}

func (s *stream) lost(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.leave()
}

func (s *stream) fault(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: s.RemoteAddr(), Err: err}
}

// addr is a target.
type addr string

// Network implements net.Addr.
func (addr) Network() string { return "tcp" }

// String implements net.Addr.
func (a addr) String() string { return string(a) }

// LocalAddr implements net.Conn.
func (s *stream) LocalAddr() net.Addr { return addr(fmt.Sprintf("stream-%d", s.id)) }

// RemoteAddr implements net.Conn: what was dialed on the node.
func (s *stream) RemoteAddr() net.Addr { return addr(s.target) }

// SetDeadline implements net.Conn.
func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (s *stream) SetReadDeadline(t time.Time) error { return s.setDeadline(&s.readUntil, t) }

// SetWriteDeadline implements net.Conn.
func (s *stream) SetWriteDeadline(t time.Time) error { return s.setDeadline(&s.writeUntil, t) }

func (s *stream) setDeadline(d *deadline, t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.fault("set deadline", net.ErrClosed)
	}
	d.set(t)
	return nil
}
