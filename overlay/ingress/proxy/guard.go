package proxy

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// guard bounds the open connections of all ports: in total, and per client address.
type guard struct {
	all, each int

	mu   sync.Mutex
	n    int
	by   map[netip.Addr]int
	lost atomic.Int64 // connections refused since the last log line
}

func newGuard(all int) *guard {
	return &guard{all: all, each: max(all/2, 1), by: map[netip.Addr]int{}}
}

func (g *guard) enter(a netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n >= g.all || g.by[a] >= g.each {
		g.lost.Add(1)
		return false
	}
	g.n++
	g.by[a]++
	return true
}

func (g *guard) leave(a netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n--
	if g.by[a]--; g.by[a] <= 0 {
		delete(g.by, a)
	}
}

// guarded is a listener that counts its connections. It closes connections above the bounds at once, so that they do not
// delay others in the accept queue.
type guarded struct {
	net.Listener
	guard *guard
	full  func()
}

func (l *guarded) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		a := addrOf(conn.RemoteAddr())
		if l.guard.enter(a) {
			return &guardedConn{Conn: conn, leave: func() { l.guard.leave(a) }}, nil
		}
		conn.Close()
		l.full()
	}
}

func addrOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

type guardedConn struct {
	net.Conn
	once  sync.Once
	leave func()
}

func (c *guardedConn) Close() error {
	c.once.Do(c.leave)
	return c.Conn.Close()
}
