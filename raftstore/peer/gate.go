package peer

import (
	"container/list"
	"context"
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
	roleAnonymous      // no verified certificate; silent until its first request has come
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

	heard atomic.Bool // a request's head has come
	// Guarded by gate.mu.
	role    role
	at      *list.Element // in its address's queue of the gate's handshakes or silent
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

// crowd is connections by address, those of one the oldest first.
type crowd struct {
	by map[netip.Addr]*list.List // of *portConn
	n  int
}

func (w *crowd) add(c *portConn) {
	if w.by[c.ip] == nil {
		w.by[c.ip] = list.New()
	}
	c.at = w.by[c.ip].PushBack(c)
	w.n++
}

func (w *crowd) remove(c *portConn) {
	if c.at == nil {
		return
	}
	q := w.by[c.ip]
	q.Remove(c.at)
	c.at = nil
	w.n--
	if q.Len() == 0 {
		delete(w.by, c.ip)
	}
}

// of is how many there are of an address.
func (w *crowd) of(ip netip.Addr) int {
	if q := w.by[ip]; q != nil {
		return q.Len()
	}
	return 0
}

// oldest is that of an address; nil when there is none.
func (w *crowd) oldest(ip netip.Addr) *portConn {
	if q := w.by[ip]; q != nil {
		return q.Front().Value.(*portConn)
	}
	return nil
}

// oldestOfMost is that of the address which has the most; nil when there is none.
func (w *crowd) oldestOfMost() *portConn {
	var longest *list.List
	for _, q := range w.by {
		if longest == nil || q.Len() > longest.Len() {
			longest = q
		}
	}
	if longest == nil {
		return nil
	}
	return longest.Front().Value.(*portConn)
}

func (w *crowd) all() []*portConn {
	out := make([]*portConn, 0, w.n)
	for _, q := range w.by {
		for e := q.Front(); e != nil; e = e.Next() {
			out = append(out, e.Value.(*portConn))
		}
	}
	return out
}

// gate counts connections and says which have to go.
type gate struct {
	cfg PortConfig

	mu         sync.Mutex
	closed     bool
	handshakes crowd
	silent     crowd // the anonymous that have not asked anything
	anonymous  map[netip.Addr]int
	unknown    int // sum of anonymous
	handled    map[*portConn]struct{}
}

func newGate(cfg PortConfig) *gate {
	return &gate{
		cfg: cfg, anonymous: map[netip.Addr]int{}, handled: map[*portConn]struct{}{},
		handshakes: crowd{by: map[netip.Addr]*list.List{}}, silent: crowd{by: map[netip.Addr]*list.List{}},
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
	switch {
	case g.handshakes.of(c.ip) >= g.cfg.MaxHandshakesPerIP:
		evicted = g.handshakes.oldest(c.ip)
	case g.handshakes.n >= g.cfg.MaxHandshakes:
		evicted = g.handshakes.oldestOfMost()
	}
	if evicted != nil {
		evicted.evicted.Store(true)
		g.settle(evicted, roleGone)
	}
	g.handshakes.add(c)
	return evicted, true
}

// pass counts c, whose handshake is done, as to; false when there are too many
// of those, or c is closed. A stranger's place is taken from one that has asked
// nothing since its handshake, which is named to be closed.
func (g *gate) pass(c *portConn, to role) (evicted *portConn, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || c.role == roleGone {
		return nil, false
	}
	if to == roleAnonymous {
		full := true
		switch {
		case g.anonymous[c.ip] >= g.cfg.MaxAnonymousPerIP:
			evicted = g.silent.oldest(c.ip)
		case g.unknown >= g.cfg.MaxAnonymous:
			evicted = g.silent.oldestOfMost()
		default:
			full = false
		}
		if full && evicted == nil {
			return nil, false
		}
		if full {
			g.settle(evicted, roleGone)
		}
	}
	g.settle(c, to)
	return evicted, true
}

// hear notes that a request's head has come over c.
func (g *gate) hear(c *portConn) {
	if c.heard.Swap(true) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.role == roleAnonymous {
		g.silent.remove(c)
	}
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
		g.handshakes.remove(c)
	case roleAnonymous:
		g.silent.remove(c)
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
		if !c.grpc {
			g.silent.add(c)
		}
	case roleHandled:
		g.handled[c] = struct{}{}
	}
}

// close closes the handshakes and what is handled, and admits no more.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	out := g.handshakes.all()
	for c := range g.handled {
		out = append(out, c)
	}
	g.mu.Unlock()
	for _, c := range out {
		_ = c.Close()
	}
}

type connKey struct{}

// ConnContext is for the http.Server of Port.REST, so that Heard finds the
// connection of a request.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if p, ok := c.(*portConn); ok {
		return context.WithValue(ctx, connKey{}, p)
	}
	return ctx
}

// Heard tells the port that a request has come whose context is ctx: its
// connection is not closed for others of its address. It does nothing for
// connections of other listeners.
func Heard(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*portConn); ok && !c.heard.Load() {
		c.gate.hear(c)
	}
}
