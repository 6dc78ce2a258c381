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

// maxIdleBuffer is the largest buffer that a stream keeps while it is empty.
const maxIdleBuffer = 64 << 10

// stream is one carried connection: a net.Conn whose two directions end independently.
type stream struct {
	link   *link
	id     uint32
	target string
	answer chan error    // the node's answer, nil for opened; only the opener's streams have it
	gone   chan struct{} // closed when nothing more can be sent: closed here, reset there, or the link is over
	turn   chan struct{} // buffered, capacity 1: Write and CloseWrite hold its element

	readable, writable    chan struct{} // have an element when a waiting reader or writer should check again
	readUntil, writeUntil deadline

	mu         sync.Mutex
	isGone     bool
	onGone     func() // called when gone is closed; may be nil
	closed     bool   // by Close, at this end
	opened     bool
	buf        []byte // received
	at         int    // how much of it was read
	mayCome    int    // bytes that the peer may still send
	unreported int    // bytes read, for which no credit was given yet
	window     int    // bytes that may be sent to this end and unread
	granted    time.Time
	credit     int // bytes that may be sent
	gotEnd     bool
	sentEnd    bool
	err        error // of Read once buf is empty, and of Write
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
		n, grant, err := s.readBuffered(p)
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

// readBuffered reads received bytes. It returns 0 and no error if the caller has to wait. grant is the credit to send.
func (s *stream) readBuffered(p []byte) (n, grant int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		wake(s.readable) // wake the other waiting readers
		return 0, 0, s.fault("read", net.ErrClosed)
	case isClosed(s.readUntil.passed()):
		return 0, 0, s.fault("read", os.ErrDeadlineExceeded)
	case s.at < len(s.buf):
		n = copy(p, s.buf[s.at:])
		s.at += n
		s.unreported += n
		if s.at == len(s.buf) {
			s.buf, s.at = s.buf[:0], 0
			if cap(s.buf) > maxIdleBuffer {
				s.buf = nil
			}
		} else {
			wake(s.readable) // wake the next reader
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

// grant returns the credit to send for the bytes read. If the reader keeps up with a fast writer the window grows, because
// then the delay of the path limits the throughput. The caller holds s.mu.
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

// claim takes credit for up to want bytes. It returns 0 and no error if the caller has to wait.
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

// CloseWrite ends the data in this direction; reading goes on.
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

// Close implements net.Conn. Written data is still delivered; received data is dropped.
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

// leave wakes all waiting goroutines. The caller holds s.mu.
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

// whenGone sets the function that is called when nothing more can be sent. It replaces the former one. fn must not block.
func (s *stream) whenGone(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.onGone = fn; s.isGone {
		fn()
	}
}

// forget ends a stream without a frame to the peer.
func (s *stream) forget() {
	s.lost(net.ErrClosed)
	_ = s.close("")
}

// The methods below handle frames of the peer.

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

// addr is a stream's target as a net.Addr.
type addr string

// Network implements net.Addr.
func (addr) Network() string { return "tcp" }

// String implements net.Addr.
func (a addr) String() string { return string(a) }

// LocalAddr implements net.Conn.
func (s *stream) LocalAddr() net.Addr { return addr(fmt.Sprintf("stream-%d", s.id)) }

// RemoteAddr implements net.Conn. It returns the target on the node.
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
