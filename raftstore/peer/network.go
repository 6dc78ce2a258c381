package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore"
)

// ALPN names of the two protocols between peers.
const (
	ALPNRaft = "balsa-raft/1"
	ALPNPeer = "balsa-peer/1"
)

const (
	// helloTime bounds the exchange of hellos on an accepted connection.
	helloTime = 5 * time.Second
	// frameBudget bounds the memory of the large frames that are being received,
	// all peers together.
	frameBudget = 4 * maxFrame
)

// Network is this server among its peers. All methods may be called from any
// goroutine.
type Network struct {
	cfg     Config
	refuse  *logLimit
	conns   *registry
	budget  *semaphore.Weighted
	service *service
	inbound *handoff // accepted connections for the gRPC server
	done    chan struct{}

	hello hello // ours, as of the newest version; generation is filled in

	mu    sync.Mutex
	raft  *transport       // the one that is open, nil when none is
	links map[string]*link // by peer
	knock map[string]bool  // peers that are being looked for, see missed
	wg    sync.WaitGroup   // pingers of links
	over  atomic.Bool
}

// New makes a network; nothing is dialed or served until it is used, nothing
// incoming is answered before Attach.
func New(cfg Config) (*Network, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Network{
		cfg: cfg, refuse: newLogLimit(cfg.Logger.With("component", "peer")), conns: newRegistry(),
		budget: semaphore.NewWeighted(frameBudget), service: newService(), inbound: newHandoff(nil),
		done: make(chan struct{}), links: map[string]*link{}, knock: map[string]bool{},
		hello: hello{version: Version, oldest: OldestVersion, cluster: cfg.ClusterID, server: cfg.ServerID},
	}, nil
}

// Attach lets port hand over the connections that peers make to it.
func (n *Network) Attach(port *Port) {
	cert := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return n.cfg.Certificate() }
	for _, alpn := range []string{ALPNRaft, ALPNPeer} {
		port.route(alpn, route{certificate: cert, serve: n.accept})
	}
}

// Serve says what incoming requests are answered by; nil: by nothing, which
// peers see as ErrUnreachable. It may be called again, with another store.
func (n *Network) Serve(h raftstore.Handler) { n.service.handle(h) }

// Run answers peers' requests until ctx ends. Then every connection is closed,
// everything under way fails, and Run returns when all goroutines have ended
// but those of the port, which end by themselves. A network runs once.
func (n *Network) Run(ctx context.Context) error {
	server := newServer(n.service)
	served := make(chan error, 1)
	go func() { served <- fault.Contain("peers", func() error { return server.Serve(n.inbound) }) }()
	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
		served <- err
		err = fmt.Errorf("peer: serve: %w", err)
	}
	n.close()
	server.Stop()
	if e := <-served; err == nil && e != nil && !errors.Is(e, grpc.ErrServerStopped) && !errors.Is(e, net.ErrClosed) {
		err = fmt.Errorf("peer: serve: %w", e)
	}
	n.wg.Wait()
	return err
}

// close ends everything; what is asked afterwards gets ErrClosed.
func (n *Network) close() {
	if n.over.Swap(true) {
		return
	}
	close(n.done)
	_ = n.inbound.Close()
	n.mu.Lock()
	links, raft := n.links, n.raft
	n.links, n.raft = map[string]*link{}, nil
	n.mu.Unlock()
	n.conns.close()
	for _, l := range links {
		l.close()
	}
	if raft != nil {
		_ = raft.Close()
	}
}

// Drop closes every connection to and from a peer: gossip says that it is gone,
// or that it is elsewhere now. Requests under way fail with ErrUnreachable; the
// next one dials anew.
func (n *Network) Drop(serverID string) {
	n.mu.Lock()
	l, raft := n.links[serverID], n.raft
	delete(n.links, serverID)
	n.mu.Unlock()
	if raft != nil {
		raft.forget(serverID)
	}
	n.conns.drop(serverID, all)
	if l != nil {
		l.close()
	}
}

// greeting is the hello of this moment.
func (n *Network) greeting() hello {
	h := n.hello
	h.generation = n.cfg.Generation()
	return h
}

// note tells whoever wants to know that a peer is of a newer generation.
func (n *Network) note(v verdict, theirs hello) {
	if v == ahead {
		n.cfg.OnGeneration(theirs.server, theirs.generation)
	}
}

// accept takes a connection from the port, whose certificate the port has
// verified, and serves it.
func (n *Network) accept(t *tls.Conn) {
	state := t.ConnectionState()
	who := t.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(who); err == nil {
		who = host
	}
	id, leaf, err := remote(state)
	if err != nil {
		n.refuse.refused(who, "peer's certificate", err)
		n.reject(t)
		return
	}
	c := &conn{Conn: t, peer: id, alpn: state.NegotiatedProtocol, leaf: leaf}
	if n.conns.add(c) != nil {
		return
	}
	if err := n.welcome(c); err != nil {
		n.refuse.refused(id, "peer", fmt.Errorf("%w (from %s)", err, who))
		_ = c.Close()
		return
	}
	if c.alpn == ALPNPeer {
		if n.inbound.give(c, helloTime) != nil {
			_ = c.Close()
		}
		return
	}
	n.mu.Lock()
	raft := n.raft
	n.mu.Unlock()
	if raft == nil {
		_ = c.Close()
		return
	}
	raft.serve(c)
}

// reject tells a client why it is refused, before it is identified.
func (n *Network) reject(t *tls.Conn) {
	_ = t.SetDeadline(time.Now().Add(helloTime))
	if _, err := readHello(t); err == nil {
		ours := n.greeting()
		ours.verdict = wrongServer
		_, _ = t.Write(ours.encode())
	}
	_ = t.NetConn().Close()
}

// welcome is the hello exchange on an accepted connection.
func (n *Network) welcome(c *conn) error {
	_ = c.SetDeadline(time.Now().Add(helloTime))
	theirs, err := readHello(c)
	if err != nil {
		return err
	}
	ours := n.greeting()
	ours.verdict = judge(ours, theirs)
	if theirs.server != c.peer || theirs.server == n.cfg.ServerID {
		ours.verdict = wrongServer
	}
	n.note(ours.verdict, theirs)
	if _, err := c.Write(ours.encode()); err != nil {
		return fmt.Errorf("peer: answer hello: %w", err)
	}
	if err := refusal(ours.verdict, ours, theirs); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}
