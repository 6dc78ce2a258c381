package peer

import (
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// handoff is a listener whose connections are given to it.
type handoff struct {
	addr net.Addr
	conn chan net.Conn
	done chan struct{}
	once sync.Once
}

func newHandoff(addr net.Addr) *handoff {
	if addr == nil {
		addr = &net.TCPAddr{}
	}
	return &handoff{addr: addr, conn: make(chan net.Conn), done: make(chan struct{})}
}

// give hands c to a call of Accept, for which it waits at most that long. On an error the caller still owns c.
func (h *handoff) give(c net.Conn, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case h.conn <- c:
		return nil
	case <-h.done:
		return net.ErrClosed
	case <-timer.C:
		return fmt.Errorf("peer: the server does not accept: %w", os.ErrDeadlineExceeded)
	}
}

// Accept implements net.Listener.
func (h *handoff) Accept() (net.Conn, error) {
	select {
	case c := <-h.conn:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handoff) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

// Addr implements net.Listener.
func (h *handoff) Addr() net.Addr { return h.addr }
