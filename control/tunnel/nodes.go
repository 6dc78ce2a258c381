package tunnel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/balsahq/balsa/control/tunnel/mux"
	"github.com/balsahq/balsa/fault"
)

// ErrNotConnected means that the node keeps no connection to this server.
var ErrNotConnected = errors.New("is not connected to this server")

var errRejoined = errors.New("the node is no longer a member of the cluster")

// Tunnel knows the nodes that are connected. Safe for concurrent use.
type Tunnel struct {
	cfg Config

	mu        sync.Mutex
	nodes     map[string]*node
	verdicts  verdicts
	presences map[string]*presence
	changed   chan struct{} // closed at a change of presences
	nudge     chan struct{} // has one element when a node is away
}

// node is a connected node.
type node struct {
	*mux.Opener
	name string
	cert *x509.Certificate
}

// New starts nothing. Serve adds connections; Run decides which nodes are dead.
func New(cfg Config) (*Tunnel, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Tunnel{cfg: cfg.withDefaults(), nodes: map[string]*node{}, verdicts: newVerdicts(maxVerdicts),
		presences: map[string]*presence{}, changed: make(chan struct{}), nudge: make(chan struct{}, 1)}, nil
}

// Serve handles the connection of a node, whose certificate TLS has verified, and returns when the connection is over. The port
// calls it for connections with this package's ALPN.
func (t *Tunnel) Serve(c *tls.Conn) {
	defer c.Close()
	chains := c.ConnectionState().VerifiedChains
	if len(chains) == 0 {
		return
	}
	leaf := chains[0][0]
	name, err := t.cfg.Identify(leaf)
	if err != nil {
		_ = mux.Refuse(c, err.Error()) // a node that does not read it sees the connection end
		return
	}
	n := &node{mux.NewOpener(mux.OpenerConfig{Conn: c, MaxStreams: t.cfg.MaxStreams}), name, leaf}
	expiry := time.AfterFunc(time.Until(leaf.NotAfter), func() { n.Close(errors.New("the node's certificate has expired")) })
	defer expiry.Stop()
	var farewell sync.WaitGroup
	defer farewell.Wait()
	if old := t.addNode(n); old != nil {
		farewell.Go(fault.Contained("control/tunnel", func() { old.Bye("this node has connected again") }))
	}
	defer t.leave(n)
	farewell.Go(func() {
		if err := fault.Do("control/tunnel", func() {
			n.Beat(t.beat, misses, func(heard bool) { t.recordPing(n, heard) })
		}); err != nil {
			n.Close(err) // the node connects again
		}
	})
	if t.cfg.Receive != nil {
		farewell.Go(fault.Contained("control/tunnel", func() { t.receive(n) }))
	}
	t.cfg.Logger.Debug("a node has connected", "node", name, "from", c.RemoteAddr())
	err = n.Run()
	level := t.cfg.Logger.Debug
	if errors.Is(err, mux.ErrProtocol) {
		level = t.cfg.Logger.Warn
	}
	level("a node's connection has ended; the node connects again", "node", name, "from", c.RemoteAddr(), "err", err)
}

// addNode makes n the connection of its node and returns the former one.
func (t *Tunnel) addNode(n *node) (old *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old = t.nodes[n.name]
	t.nodes[n.name] = n
	t.setPresent(n.name, time.Now())
	return old
}

func (t *Tunnel) leave(n *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nodes[n.name] == n {
		delete(t.nodes, n.name)
		t.setAbsent(n.name, time.Now(), t.cfg.Return)
	}
}

// Connected returns the names of the connected nodes, sorted.
func (t *Tunnel) Connected() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for name := range t.nodes {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// misses is the number of consecutive unanswered pings after which a node is away.
const misses = 4

// node returns a connected node; nil when it is not connected or connections of nodes are not used.
func (t *Tunnel) node(name string) *node {
	if t.cfg.Mode == Never {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nodes[name]
}

// any reports whether any node is connected.
func (t *Tunnel) any() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.nodes) > 0
}

// maxTried bounds the nodes that are tried for one connection.
const maxTried = 3

// choose returns connected nodes, those of preferred first, then random ones.
func (t *Tunnel) choose(preferred []string) (list []*node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range preferred {
		if n := t.nodes[name]; n != nil && !slices.Contains(list, n) && len(list) < maxTried {
			list = append(list, n)
		}
	}
	for _, n := range t.nodes { // in Go's random order of map iteration
		if len(list) >= maxTried {
			break
		}
		if !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	return list
}

// open makes a node connect to target. The error is a *Refused when the node itself refused or failed to connect.
func (t *Tunnel) open(ctx context.Context, n *node, target string) (net.Conn, error) {
	if name, err := t.cfg.Identify(n.cert); err != nil || name != n.name {
		n.Close(errors.Join(errRejoined, err))
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Patience)
	defer cancel()
	c, err := n.Open(ctx, target)
	var refusal mux.Refusal
	if errors.As(err, &refusal) {
		return nil, &Refused{Node: n.name, Text: string(refusal)}
	}
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.name, err)
	}
	return c, nil
}

// Refused is the answer of a node that could not or may not connect to a target.
type Refused struct{ Node, Text string }

// Error implements error.
func (r *Refused) Error() string { return "node " + r.Node + ": " + r.Text }
