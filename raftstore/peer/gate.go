package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balsahq/balsa/raftstore/peer/connlimit"
)

// role is the group in which the gate counts a connection.
type role int

const (
	roleHandshake role = iota
	roleAnonymous      // no verified certificate, and no request that proved a user
	roleKnown          // a verified certificate, or a request that proved a user
	roleHandled        // known, and served by a function given to Handle
	roleGone
)

// owner is the key by which known connections are counted: a user at an address. Pods on many nodes may be one user, and pods of several
// users may share one address.
type owner struct {
	user string
	ip   netip.Addr
}

// portConn is an accepted connection, below TLS.
type portConn struct {
	net.Conn
	gate    *gate
	ip      netip.Addr
	evicted atomic.Bool

	// Used by the handshake's goroutine only, until the connection is handed over.
	route    *route // nil: REST or gRPC
	grpc     bool
	shown    []*x509.Certificate // the client's, when they were verified
	greeting *greeting           // nil after the handshake

	requests atomic.Int32 // under way
	last     atomic.Int64 // nanoseconds since the gate was made, when it was last used
	known    atomic.Bool  // role is roleKnown

	// Guarded by gate.mu.
	role    role
	queued  bool // waits for its turn to compute, or has it
	owner   owner
	expires *time.Timer
}

// State implements connlimit.Member. An anonymous connection counts as idle also while a request is under way: anonymous requests are
// short. gate.mu is held.
func (c *portConn) State() connlimit.State {
	busy := c.role == roleHandshake && c.queued || c.role == roleKnown && c.requests.Load() > 0
	return connlimit.State{Busy: busy, Last: c.last.Load()}
}

// touch notes that c is used now.
func (c *portConn) touch() { c.last.Store(int64(time.Since(c.gate.began))) }

// Close implements net.Conn.
func (c *portConn) Close() error {
	c.gate.remove(c)
	return c.Conn.Close()
}

// Read implements net.Conn. A handshake gives up its turn while it reads.
func (c *portConn) Read(p []byte) (int, error) {
	if c.greeting == nil {
		return c.Conn.Read(p)
	}
	c.gate.releaseTurn(c)
	n, err := c.Conn.Read(p)
	if err != nil {
		return n, err
	}
	return n, c.gate.awaitTurn(c)
}

// expireAt closes the connection at a time.
func (c *portConn) expireAt(at time.Time) {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	c.expires = time.AfterFunc(time.Until(at), func() { _ = c.Close() })
}

// remoteIP returns the address by which connections are counted: an IPv4 address, or the /64 prefix of an IPv6 address, because one host
// may own the whole prefix.
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

// greeting is a handshake under way.
type greeting struct {
	began   time.Time
	waited  time.Duration // for its turn
	working bool          // it has its turn
	turn    chan bool     // receives true when its turn has come, false when it is closed; buffered, 1
}

// gate counts connections, decides which are closed when there are too many, and lets few handshakes compute at once.
type gate struct {
	cfg   PortConfig
	began time.Time

	mu         sync.Mutex
	closed     bool
	handshakes connlimit.Crowd[netip.Addr, *portConn]
	turns      *connlimit.Turns[netip.Addr, *portConn]
	anonymous  connlimit.Crowd[netip.Addr, *portConn]
	known      connlimit.Crowd[owner, *portConn]
	handled    map[*portConn]struct{}
}

func newGate(cfg PortConfig) *gate {
	return &gate{
		cfg: cfg, began: time.Now(), handled: map[*portConn]struct{}{},
		turns: connlimit.NewTurns[netip.Addr, *portConn](cfg.MaxComputing),
	}
}

// admit counts c as a handshake. When there are too many, it returns another one, whose client is silent, for the caller to close. ok is
// false when there is no room, or the gate is closed.
func (g *gate) admit(c *portConn) (evicted *portConn, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, false
	}
	evicted, _, ok = g.handshakes.Place(c.ip, g.cfg.MaxHandshakes, g.cfg.MaxHandshakes)
	if !ok {
		c.role = roleGone
		return nil, false
	}
	if evicted != nil {
		evicted.evicted.Store(true)
		g.recount(evicted, roleGone)
	}
	c.touch()
	g.handshakes.Add(c.ip, c)
	return evicted, true
}

var errTurn = errors.New("peer: too many handshakes are waiting to be worked on")

// awaitTurn waits for c's turn to compute. The wait does not count against the client's HandshakeTimeout.
func (g *gate) awaitTurn(c *portConn) error {
	g.mu.Lock()
	if c.role != roleHandshake {
		g.mu.Unlock()
		return net.ErrClosed
	}
	c.queued = true
	if c.greeting.working = g.turns.Take(c.ip, c); c.greeting.working {
		g.mu.Unlock()
		return nil
	}
	g.mu.Unlock()
	began := time.Now()
	timer := time.NewTimer(g.cfg.HandshakeWait - c.greeting.waited)
	defer timer.Stop()
	select {
	case c.greeting.working = <-c.greeting.turn:
	case <-timer.C:
		if g.stopWaiting(c) {
			return errTurn
		}
		c.greeting.working = <-c.greeting.turn // the turn came as the timer fired
	}
	if !c.greeting.working {
		return net.ErrClosed
	}
	c.greeting.waited += time.Since(began)
	return c.SetDeadline(c.greeting.began.Add(g.cfg.HandshakeTimeout + c.greeting.waited))
}

// stopWaiting takes c out of the queue. It returns false when c's turn has come or c is closed.
func (g *gate) stopWaiting(c *portConn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.turns.Drop(c.ip, c)
}

// releaseTurn gives c's turn to the next handshake, because c waits for its client or has ended.
func (g *gate) releaseTurn(c *portConn) {
	if !c.greeting.working {
		return
	}
	c.greeting.working = false
	g.mu.Lock()
	defer g.mu.Unlock()
	c.queued = false
	c.touch()
	if next, ok := g.turns.Done(); ok {
		next.greeting.turn <- true
	}
}

// setRole counts c, whose handshake is done, in role to. user is the name in c's certificate. It returns a connection for the caller to
// close when c takes its place; ok is false when there is no place, or c is closed.
func (g *gate) setRole(c *portConn, to role, user string) (evicted *portConn, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.moveTo(c, to, user)
}

// setUser counts c as a connection of user, which a request on c has proved. Its results are those of setRole.
func (g *gate) setUser(c *portConn, user string) (evicted *portConn, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.role != roleAnonymous { // another request has proved a user, or c is closed
		return nil, true
	}
	return g.moveTo(c, roleKnown, user)
}

// moveTo finds a place for c in role to. g.mu is held.
func (g *gate) moveTo(c *portConn, to role, user string) (evicted *portConn, ok bool) {
	if g.closed || c.role == roleGone {
		return nil, false
	}
	c.touch()
	key := owner{user, c.ip}
	if to == roleAnonymous {
		evicted, _, ok = g.anonymous.Place(c.ip, g.cfg.MaxAnonymousPerIP, g.cfg.MaxAnonymous)
	} else {
		evicted, _, ok = g.known.Place(key, g.cfg.MaxPerUser, g.cfg.MaxKnown)
	}
	if !ok {
		return nil, false
	}
	if evicted != nil {
		g.recount(evicted, roleGone)
	}
	c.owner = key
	g.recount(c, to)
	return evicted, true
}

// remove stops counting c.
func (g *gate) remove(c *portConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recount(c, roleGone)
	if c.expires != nil {
		c.expires.Stop()
	}
}

// recount moves c from its role to another. g.mu is held.
func (g *gate) recount(c *portConn, to role) {
	switch c.role {
	case roleHandshake:
		g.handshakes.Remove(c.ip, c)
		if g.turns.Drop(c.ip, c) {
			c.greeting.turn <- false
		}
	case roleAnonymous:
		g.anonymous.Remove(c.ip, c)
	case roleKnown:
		g.known.Remove(c.owner, c)
	case roleHandled:
		g.known.Remove(c.owner, c)
		delete(g.handled, c)
	case roleGone:
		return
	}
	c.role = to
	switch to {
	case roleAnonymous:
		g.anonymous.Add(c.ip, c)
	case roleKnown:
		g.known.Add(c.owner, c)
		c.known.Store(true)
	case roleHandled:
		g.known.Add(c.owner, c)
		g.handled[c] = struct{}{}
	}
}

// close closes the handshakes and the connections of Handle, and admits no more.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	out := g.handshakes.All()
	for c := range g.handled {
		out = append(out, c)
	}
	g.mu.Unlock()
	for _, c := range out {
		_ = c.Close()
	}
}

type connKey struct{}

// ConnContext is the ConnContext of the http.Server on Port.REST, with which Began, Ended and Proved find the connection of a request.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if p, ok := c.(*portConn); ok {
		return context.WithValue(ctx, connKey{}, p)
	}
	return ctx
}

func connOf(ctx context.Context) *portConn {
	c, _ := ctx.Value(connKey{}).(*portConn)
	return c
}

// Began tells the port that a request begins whose context is ctx, and Ended that it has ended. Connections without a request are closed
// first when there are too many. Both do nothing for connections of other listeners.
func Began(ctx context.Context) {
	if c := connOf(ctx); c != nil {
		c.requests.Add(1)
		c.touch()
	}
}

// Ended must be called once for each call of Began.
func Ended(ctx context.Context) {
	if c := connOf(ctx); c != nil {
		c.touch()
		c.requests.Add(-1)
	}
}

// ErrTooManyConnections is returned by Proved for a user that has as many connections as allowed, all of them in use.
var ErrTooManyConnections = errors.New("this user holds too many connections from this address: end some, or use one for several requests")

// Proved tells the port that a request whose context is ctx has proved its user. From then on its connection counts as the user's and is
// not closed for anonymous ones; the first proof on a connection counts. After an error the connection stays anonymous. It does nothing
// for connections of other listeners.
func Proved(ctx context.Context, user string) error {
	c := connOf(ctx)
	if c == nil || c.known.Load() {
		return nil
	}
	evicted, ok := c.gate.setUser(c, user)
	if evicted != nil {
		_ = evicted.Close()
	}
	if !ok {
		return ErrTooManyConnections
	}
	return nil
}
