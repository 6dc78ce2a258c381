package mux

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// stall is how long a write may block before the connection is closed.
const stall = 15 * time.Second

var buffers = sync.Pool{New: func() any { return new([headerSize + maxPayload]byte) }}

// link is the common part of both ends: the connection and its streams.
type link struct {
	conn    net.Conn
	writing chan struct{} // buffered, capacity 1: a goroutine that puts an element in may write a frame
	done    chan struct{} // closed when the connection is over
	heard   atomic.Int64  // frames read so far
	lent    atomic.Int64  // bytes by which windows have grown
	head    [headerSize]byte

	mu      sync.Mutex
	err     error // why it is over
	streams map[uint32]*stream
	last    uint32 // the highest number that a stream had
}

func newLink(conn net.Conn) *link {
	return &link{conn: conn, writing: make(chan struct{}, 1), done: make(chan struct{})}
}

// send writes one frame. It waits for its turn; when cancel is closed meanwhile it returns os.ErrDeadlineExceeded. After
// any other error the link has failed.
func (l *link) send(cancel <-chan struct{}, k kind, id uint32, payload []byte) error {
	select {
	case l.writing <- struct{}{}:
	case <-cancel:
		return os.ErrDeadlineExceeded
	case <-l.done:
		return l.reason()
	}
	defer func() { <-l.writing }()
	return l.write(k, id, payload)
}

// sendNow writes a frame without payload. If another frame is being written it does nothing, because any frame is a sign of
// life.
func (l *link) sendNow(k kind) {
	select {
	case l.writing <- struct{}{}:
	default:
		return
	}
	defer func() { <-l.writing }()
	_ = l.write(k, 0, nil) // an error is the end of the link, which its reader reports
}

// write writes a frame; the caller holds the token of writing.
func (l *link) write(k kind, id uint32, payload []byte) error {
	buf := buffers.Get().(*[headerSize + maxPayload]byte)
	defer buffers.Put(buf)
	err := l.conn.SetWriteDeadline(time.Now().Add(stall))
	if err == nil {
		_, err = l.conn.Write(appendFrame(buf[:0], k, id, payload))
	}
	if err != nil {
		l.fail(err)
		return l.reason()
	}
	return nil
}

// fail ends the link and every stream in it. The first reason stays.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	streams := l.streams
	l.streams = nil
	close(l.done)
	l.mu.Unlock()
	if t, ok := l.conn.(interface{ NetConn() net.Conn }); ok {
		_ = t.NetConn().Close() // the close of TLS could block
	} else {
		_ = l.conn.Close()
	}
	for _, s := range streams {
		s.lost(errLost{err})
	}
}

// errLost is the error of streams whose link has ended.
type errLost struct{ err error }

func (e errLost) Error() string {
	return "the node's connection to this server is lost: " + e.err.Error()
}
func (e errLost) Unwrap() error { return e.err }

func (l *link) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errLost{l.err}
}

// add adds a stream; false if the link has ended.
func (l *link) add(s *stream) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return false
	}
	if l.streams == nil {
		l.streams = map[uint32]*stream{}
	}
	l.streams[s.id] = s
	return true
}

// number records that a stream's number was used. Numbers need not arrive in order.
func (l *link) number(id uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = max(l.last, id)
}

func (l *link) remove(id uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.streams, id)
	if len(l.streams) == 0 {
		l.streams = nil // a map never shrinks, and most links are idle
	}
}

// find returns a stream; nil for one that was closed here meanwhile. A number that was never used is a protocol violation.
func (l *link) find(id uint32) (*stream, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.streams[id]; s != nil {
		return s, nil
	}
	if id > l.last {
		return nil, violation("stream %d was never opened", id)
	}
	return nil, nil
}

// lend reserves n bytes for the growth of a window; false if maxLent would be exceeded.
func (l *link) lend(n int) bool {
	if l.lent.Add(int64(n)) <= maxLent {
		return true
	}
	l.lent.Add(-int64(n))
	return false
}

func (l *link) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.streams)
}

// read hands frames to handle until the link is over, and returns why.
func (l *link) read(handle func(frame) error) error {
	var buf *[headerSize + maxPayload]byte
	buffer := func() []byte {
		if buf == nil {
			buf = buffers.Get().(*[headerSize + maxPayload]byte)
		}
		return buf[:]
	}
	for {
		f, err := readFrame(l.conn, l.head[:], buffer)
		if err == nil {
			l.heard.Add(1)
			err = handle(f)
		}
		if buf != nil {
			buffers.Put(buf)
			buf = nil
		}
		if err != nil {
			l.fail(err)
			lost := l.reason()
			return errors.Unwrap(lost)
		}
	}
}

// common handles frames that both ends may send.
func (l *link) common(f frame) error {
	switch f.kind {
	case kindData, kindCredit, kindEnd, kindReset:
	default:
		return violation("frame of kind %d from that end", f.kind)
	}
	s, err := l.find(f.stream)
	if s == nil || err != nil {
		return err
	}
	switch f.kind {
	case kindData:
		return s.data(f.payload)
	case kindCredit:
		return s.credited(f.payload)
	case kindEnd:
		return s.ended()
	case kindReset:
		l.remove(f.stream)
		s.reset(string(f.payload))
	}
	return nil
}
