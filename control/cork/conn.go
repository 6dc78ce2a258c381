package cork

import (
	"crypto/tls"
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// most is how much is held at once: a piece of a long answer with what is around
	// its frames and records.
	most = 80 << 10
	// plaintext is how much of what is written goes into one record, and record how
	// large that is at most.
	plaintext = 16 << 10
	record    = plaintext + 1<<10
	// farewell is how long what is held at the end has to be taken by the kernel.
	farewell = 10 * time.Millisecond
)

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, most+record); return &b }}

// Conn is a connection below TLS that holds back what is written while more is to
// come. As any net.Conn's, its methods may be called at the same time.
type Conn struct {
	net.Conn
	more   atomic.Bool // another frame is sure to come, or let
	shared atomic.Bool // by several streams
	keeps  atomic.Bool // what is written is held
	holds  atomic.Bool // held is not nil

	mu     sync.Mutex
	held   *[]byte // guarded by mu
	failed error   // of bytes that Write had taken; guarded by mu
}

// NewConn returns c with a Conn around it.
func NewConn(c net.Conn) *Conn { return &Conn{Conn: c} }

// Write implements net.Conn. Bytes that are held are written later: an error of theirs
// is that of the next Write.
func (c *Conn) Write(p []byte) (int, error) {
	keeps := c.keeps.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return 0, c.failed
	}
	if c.held == nil {
		if !keeps {
			return c.Conn.Write(p)
		}
		c.held = buffers.Get().(*[]byte)
		c.holds.Store(true)
	}
	*c.held = append(*c.held, p...)
	if keeps && len(*c.held) < most {
		return len(p), nil
	}
	if c.flush(); c.failed != nil {
		return 0, c.failed
	}
	return len(p), nil
}

// flush writes what is held. c.mu is held.
func (c *Conn) flush() {
	if c.held == nil {
		return
	}
	b := c.held
	c.held = nil
	c.holds.Store(false)
	_, c.failed = c.Conn.Write(*b)
	if cap(*b) <= 2*most {
		*b = (*b)[:0]
		buffers.Put(b)
	}
}

// hold says whether another frame is sure to come.
func (c *Conn) hold(more bool) { c.more.Store(more) }

// let writes what is held.
func (c *Conn) let() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush()
	return c.failed
}

// Close implements net.Conn. What is held goes out if the socket takes it at once.
func (c *Conn) Close() error {
	c.more.Store(false)
	c.keeps.Store(false)
	if c.holds.Load() && c.mu.TryLock() {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(farewell))
		c.flush()
		c.mu.Unlock()
	}
	return c.Conn.Close()
}

// SyscallConn implements syscall.Conn where the connection inside does.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// upper is a TLS connection on a Conn, which holds the records of a write until all of
// them are there, and longer if there is more.
type upper struct {
	*tls.Conn
	below *Conn
}

// Write implements net.Conn. It is not called twice at the same time.
func (u upper) Write(p []byte) (int, error) {
	if !u.below.more.Load() && u.below.shared.Load() {
		runtime.Gosched() // others who were woken by the same event may be about to write
	}
	more := u.below.more.Load()
	if !more && len(p) <= plaintext {
		return u.Conn.Write(p) // one record, with those that are held
	}
	u.below.keeps.Store(true)
	n, err := u.Conn.Write(p)
	u.below.keeps.Store(false)
	if err == nil && !more {
		err = u.below.let()
	}
	return n, err
}

// Listener accepts connections as Conns.
type Listener struct{ net.Listener }

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return NewConn(c), nil
}

// below finds the Conn that c is made on, if there is one.
func below(c net.Conn) *Conn {
	for {
		if found, ok := c.(*Conn); ok {
			return found
		}
		on, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		c = on.NetConn()
	}
}
