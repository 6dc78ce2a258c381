package peer

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// role is what the gate counts a connection as.
type role int

const (
	roleHandshake role = iota
	roleAnonymous      // no verified certificate
	roleKnown          // a verified certificate
	roleHandled        // of a function given to Handle
	roleGone
)

// portConn is an accepted connection, below TLS.
type portConn struct {
	net.Conn
	gate    *gate
	ip      netip.Addr
	evicted atomic.Bool

	// Of the handshake's goroutine, until the connection is handed over.
	route *route // nil: REST or gRPC
	grpc  bool

	// Guarded by gate.mu.
	role    role
	at      *list.Element // in the address's queue of handshakes
	expires *time.Timer
}

// Close implements net.Conn.
func (c *portConn) Close() error {
	c.gate.leave(c)
	return c.Conn.Close()
}

// expire closes the connection when the client's verified certificate ends.
func (c *portConn) expire(s tls.ConnectionState) {
	if len(s.VerifiedChains) == 0 {
		return
	}
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	c.expires = time.AfterFunc(time.Until(s.VerifiedChains[0][0].NotAfter), func() { _ = c.Close() })
}

// remoteIP is what connections are counted by: an IPv4 address, or the /64 of an
// IPv6 address, which one host may own whole.
func remoteIP(c net.Conn) netip.Addr {
	ap, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	ip := ap.Addr().Unmap().WithZone("")
	if ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return ip
}

// gate counts connections and says which have to go.
type gate struct {
	cfg PortConfig

	mu         sync.Mutex
	closed     bool
	handshakes map[netip.Addr]*list.List // of *portConn, oldest first
	waiting    int
	anonymous  map[netip.Addr]int
	unknown    int // sum of anonymous
	handled    map[*portConn]struct{}
}

func newGate(cfg PortConfig) *gate {
	return &gate{
		cfg: cfg, handshakes: map[netip.Addr]*list.List{}, anonymous: map[netip.Addr]int{}, handled: map[*portConn]struct{}{},
	}
}

// admit counts c as one that shakes hands. Where there are too many, it names
// the one to close: an attacker's connections linger, so the oldest is his. It
// is false when the gate is closed.
func (g *gate) admit(c *portConn) (evicted *portConn, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, false
	}
	queue := g.handshakes[c.ip]
	switch {
	case queue != nil && queue.Len() >= g.cfg.MaxHandshakesPerIP:
		evicted = queue.Front().Value.(*portConn)
	case g.waiting >= g.cfg.MaxHandshakes:
		var longest *list.List
		for _, q := range g.handshakes {
			if longest == nil || q.Len() > longest.Len() {
				longest = q
			}
		}
		evicted = longest.Front().Value.(*portConn)
	}
	if evicted != nil {
		evicted.evicted.Store(true)
		g.settle(evicted, roleGone)
	}
	if g.handshakes[c.ip] == nil {
		g.handshakes[c.ip] = list.New()
	}
	c.at = g.handshakes[c.ip].PushBack(c)
	g.waiting++
	return evicted, true
}

// pass counts c, whose handshake is done, as to; false when there are too many
// of those, or c is closed.
func (g *gate) pass(c *portConn, to role) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || c.role == roleGone {
		return false
	}
	if to == roleAnonymous && (g.unknown >= g.cfg.MaxAnonymous || g.anonymous[c.ip] >= g.cfg.MaxAnonymousPerIP) {
		return false
	}
	g.settle(c, to)
	return true
}

// leave counts c no longer.
func (g *gate) leave(c *portConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settle(c, roleGone)
	if c.expires != nil {
		c.expires.Stop()
	}
}

// settle moves c from what it is counted as to another role. g.mu is held.
func (g *gate) settle(c *portConn, to role) {
	switch c.role {
	case roleHandshake:
		if c.at != nil {
			q := g.handshakes[c.ip]
			q.Remove(c.at)
			c.at = nil
			g.waiting--
			if q.Len() == 0 {
				delete(g.handshakes, c.ip)
			}
		}
	case roleAnonymous:
		g.unknown--
		if g.anonymous[c.ip]--; g.anonymous[c.ip] == 0 {
			delete(g.anonymous, c.ip)
		}
	case roleHandled:
		delete(g.handled, c)
	case roleGone:
		return
	}
	c.role = to
	switch to {
	case roleAnonymous:
		g.unknown++
		g.anonymous[c.ip]++
	case roleHandled:
		g.handled[c] = struct{}{}
	}
}

// close closes the handshakes and what is handled, and admits no more.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	var out []*portConn
	for _, q := range g.handshakes {
		for e := q.Front(); e != nil; e = e.Next() {
			out = append(out, e.Value.(*portConn))
		}
	}
	for c := range g.handled {
		out = append(out, c)
	}
	g.mu.Unlock()
	for _, c := range out {
		_ = c.Close()
	}
}
