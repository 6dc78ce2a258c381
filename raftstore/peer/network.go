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

// Network is this server's connections to its peers. All methods may be called from any goroutine.
type Network struct {
	cfg     Config
	refuse  *logLimit
	conns   *registry
	budget  *semaphore.Weighted
	service *service
	inbound *handoff // accepted connections for the gRPC server
	done    chan struct{}

	hello hello // this server's, without its generation

	mu      sync.Mutex
	raft    *transport       // the open transport, nil when none is
	links   map[string]*link // by peer
	probing map[string]bool  // peers that are being probed, see probePeer
	wg      sync.WaitGroup   // pingers of links
	over    atomic.Bool
}

// New makes a network. It dials and serves nothing until it is used, and answers no incoming connection before Attach.
func New(cfg Config) (*Network, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Network{
		cfg: cfg, refuse: newLogLimit(cfg.Logger.With("component", "peer")), conns: newRegistry(),
		budget: semaphore.NewWeighted(frameBudget), service: newService(), inbound: newHandoff(nil),
		done: make(chan struct{}), links: map[string]*link{}, probing: map[string]bool{},
		hello: hello{version: Version, oldest: OldestVersion, cluster: cfg.ClusterID, server: cfg.ServerID},
	}, nil
}

// Attach makes port hand over the connections of peers.
func (n *Network) Attach(port *Port) {
	cert := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return n.cfg.Certificate() }
	for _, alpn := range []string{ALPNRaft, ALPNPeer} {
		port.route(alpn, route{certificate: cert, serve: n.accept})
	}
}

// Serve makes h answer incoming requests. With nil none is answered, and peers get ErrUnreachable. It may be called again with another
// store.
func (n *Network) Serve(h raftstore.Handler) { n.service.handle(h) }

// Run answers peers' requests until ctx ends. Then it closes every connection, requests under way fail, and it returns when all goroutines
// have ended except those of the port, which Port.Run joins. A network runs once.
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

// close ends every connection; requests from now on get ErrClosed.
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

// Drop closes every connection to and from a peer, because gossip says that it is gone or has another address. Requests under way fail
// with ErrUnreachable; the next request dials again.
func (n *Network) Drop(serverID string) {
	n.mu.Lock()
	l, raft := n.links[serverID], n.raft
	delete(n.links, serverID)
	n.mu.Unlock()
	if raft != nil {
		raft.closeIdle(serverID)
	}
	n.conns.drop(serverID, all)
	if l != nil {
		l.close()
	}
}

// ownHello returns this server's hello with its present generation.
func (n *Network) ownHello() hello {
	h := n.hello
	h.generation = n.cfg.Generation()
	return h
}

// reportGeneration calls OnGeneration when a peer is of a newer generation.
func (n *Network) reportGeneration(v verdict, theirs hello) {
	if v == ahead {
		n.cfg.OnGeneration(theirs.server, theirs.generation)
	}
}

// accept serves a connection from the port, which has verified its certificate.
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

// reject answers the hello of a client whose certificate is not a server's with a refusal, and closes the connection.
func (n *Network) reject(t *tls.Conn) {
	_ = t.SetDeadline(time.Now().Add(helloTime))
	if _, err := readHello(t); err == nil {
		ours := n.ownHello()
		ours.verdict = wrongServer
		_, _ = t.Write(ours.encode())
	}
	_ = t.NetConn().Close()
}

// welcome exchanges hellos on an accepted connection.
func (n *Network) welcome(c *conn) error {
	_ = c.SetDeadline(time.Now().Add(helloTime))
	theirs, err := readHello(c)
	if err != nil {
		return err
	}
	ours := n.ownHello()
	ours.verdict = answerHello(ours, theirs)
	if theirs.server != c.peer || theirs.server == n.cfg.ServerID {
		ours.verdict = wrongServer
	}
	n.reportGeneration(ours.verdict, theirs)
	if _, err := c.Write(ours.encode()); err != nil {
		return fmt.Errorf("peer: answer hello: %w", err)
	}
	if err := refusal(ours.verdict, ours, theirs); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}
