package peer

import (
	"bytes"
	"crypto/x509"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"crypto/tls"
)

// maxInbound is how many connections of one protocol a peer may have to this server. With one more, its oldest is closed.
const maxInbound = 16

// conn is a connection to or from a peer, after TLS and hello. Closing it never
// blocks.
type conn struct {
	*tls.Conn
	reg     *registry
	peer    string
	alpn    string
	leaf    *x509.Certificate // the peer's
	own     []byte            // this server's leaf certificate, as it was shown (dialed connections)
	addr    string            // dialed address; "" for accepted connections
	seq     uint64            // order of registration
	expires *time.Timer
	closed  atomic.Bool
}

// Close ends the connection without TLS's closing message, which could block.
func (c *conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	c.reg.remove(c)
	return c.NetConn().Close()
}

// registry holds every open connection, by peer.
type registry struct {
	mu     sync.Mutex
	seq    uint64
	open   map[string]map[*conn]struct{}
	closed bool
}

func newRegistry() *registry { return &registry{open: map[string]map[*conn]struct{}{}} }

// add registers c and closes the connections that it replaces: those of the same peer with an older certificate, and the oldest accepted
// one when there are too many. When the registry is closed, add closes c and returns ErrClosed.
func (r *registry) add(c *conn) error {
	c.reg = r
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		_ = c.NetConn().Close()
		return ErrClosed
	}
	r.seq++
	c.seq = r.seq
	replaced := r.replaced(c)
	peers := r.open[c.peer]
	if peers == nil {
		peers = map[*conn]struct{}{}
		r.open[c.peer] = peers
	}
	peers[c] = struct{}{}
	c.expires = time.AfterFunc(time.Until(c.leaf.NotAfter), func() { _ = c.Close() })
	r.mu.Unlock()
	for _, old := range replaced {
		_ = old.Close()
	}
	return nil
}

// replaced returns the connections that c replaces. r.mu is held.
func (r *registry) replaced(c *conn) []*conn {
	var out []*conn
	var oldest *conn
	same := 0
	for old := range r.open[c.peer] {
		if old.leaf.NotBefore.Before(c.leaf.NotBefore) && !bytes.Equal(old.leaf.Raw, c.leaf.Raw) {
			out = append(out, old)
			continue
		}
		if old.addr != "" || old.alpn != c.alpn {
			continue
		}
		same++
		if oldest == nil || old.seq < oldest.seq {
			oldest = old
		}
	}
	if c.addr == "" && same >= maxInbound {
		out = append(out, oldest)
	}
	return out
}

func (r *registry) remove(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.expires != nil {
		c.expires.Stop()
	}
	delete(r.open[c.peer], c)
	if len(r.open[c.peer]) == 0 {
		delete(r.open, c.peer)
	}
}

// drop closes the connections of a peer for which the function which returns true.
func (r *registry) drop(peer string, which func(*conn) bool) {
	r.mu.Lock()
	var out []*conn
	for c := range r.open[peer] {
		if which(c) {
			out = append(out, c)
		}
	}
	r.mu.Unlock()
	for _, c := range out {
		_ = c.Close()
	}
}

func all(*conn) bool { return true }

// dropAll closes the connections of every peer for which the function which returns true.
func (r *registry) dropAll(which func(*conn) bool) {
	r.mu.Lock()
	var out []*conn
	for _, peers := range r.open {
		for c := range peers {
			if which(c) {
				out = append(out, c)
			}
		}
	}
	r.mu.Unlock()
	for _, c := range out {
		_ = c.Close()
	}
}

// close closes every connection, and from now on each one that is added.
func (r *registry) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.dropAll(all)
}

// count returns how many connections are open to and from a peer.
func (r *registry) count(peer string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.open[peer])
}

var _ net.Conn = (*conn)(nil)
