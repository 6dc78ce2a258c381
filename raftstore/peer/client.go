package peer

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/peer/peerpb"
)

// Bounds of the batches that are under way to one peer.
const (
	sentForwards = 16
	forwardBytes = 4 * maxMessage
)

// link is the connection to one peer's service. It is made with the first request and kept while it works; there is at most one.
type link struct {
	net    *Network
	peer   string
	grpc   *grpc.ClientConn
	client peerpb.PeersClient
	slots  *semaphore.Weighted // batches under way
	bytes  *semaphore.Weighted // bytes of the batches under way
	conn   atomic.Pointer[conn]
	failed atomic.Pointer[error] // error of the last dial, nil if it succeeded
	done   chan struct{}
}

// Peers returns the client for requests to other servers. While a peer cannot be reached, requests to it fail at once, except for one
// dial at most every 200 ms.
func (n *Network) Peers() raftstore.Peers { return peers{n} }

type peers struct{ net *Network }

// link returns the link to a peer, which it makes when there is none.
func (n *Network) link(id string) (*link, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over.Load() {
		return nil, fmt.Errorf("%w: %w", raftstore.ErrUnreachable, ErrClosed)
	}
	if l := n.links[id]; l != nil {
		return l, nil
	}
	l := &link{
		net: n, peer: id, done: make(chan struct{}),
		slots: semaphore.NewWeighted(sentForwards), bytes: semaphore.NewWeighted(forwardBytes),
	}
	var err error
	l.grpc, err = grpc.NewClient("passthrough:///"+ServerName(id),
		grpc.WithTransportCredentials(established{}),
		grpc.WithContextDialer(l.dial),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: n.cfg.DialTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(8<<20),
		grpc.WithReadBufferSize(64<<10), grpc.WithWriteBufferSize(64<<10),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0), grpc.WithNoProxy(),
	)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", raftstore.ErrUnreachable, err)
	}
	l.client = peerpb.NewPeersClient(l.grpc)
	n.links[id] = l
	n.wg.Go(fault.Contained("peers", l.watch))
	return l, nil
}

func (l *link) dial(ctx context.Context, _ string) (net.Conn, error) {
	c, err := l.net.dial(ctx, l.peer, ALPNPeer)
	if err != nil {
		l.failed.Store(&err)
		return nil, err
	}
	l.failed.Store(nil)
	l.conn.Store(c)
	return c, nil
}

// watch pings the peer every PingInterval while there is a connection, and closes the connection when the peer does not answer or the
// connection is no longer current. (gRPC's own pings are at least 10 s apart.)
func (l *link) watch() {
	tick := time.NewTicker(l.net.cfg.PingInterval)
	defer tick.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-tick.C:
		}
		c := l.conn.Load()
		if c == nil || c.closed.Load() {
			continue
		}
		if !l.net.current(c) || !l.ping() {
			_ = c.Close()
		}
	}
}

// ping reports whether the peer answers within PingInterval.
func (l *link) ping() bool {
	ctx, cancel := context.WithTimeout(context.Background(), l.net.cfg.PingInterval)
	defer cancel()
	_, err := l.client.Ping(ctx, &peerpb.PingRequest{})
	return status.Code(err) != codes.DeadlineExceeded
}

// close ends the link. Requests under way fail.
func (l *link) close() {
	close(l.done)
	_ = l.grpc.Close()
	if c := l.conn.Load(); c != nil {
		_ = c.Close()
	}
}

// unreachable returns the error of a request without an answer.
func (l *link) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %s: %w", raftstore.ErrUnreachable, l.peer, ctx.Err())
	}
	if status.Code(err) == codes.DeadlineExceeded {
		// The deadline passed on the peer's clock first.
		return fmt.Errorf("%w: %s: %w", raftstore.ErrUnreachable, l.peer, context.DeadlineExceeded)
	}
	if why := l.failed.Load(); why != nil && status.Code(err) == codes.Unavailable {
		err = *why
	}
	return fmt.Errorf("%w: %s: %w", raftstore.ErrUnreachable, l.peer, err)
}

// Forward implements raftstore.Peers.
func (p peers) Forward(ctx context.Context, to string, batch raftstore.Batch) error {
	size := int64(len(batch.Entry))
	if size > maxMessage-1024 {
		return fmt.Errorf("%w: batch of %d bytes, at most %d allowed", raftstore.ErrTooLarge, size, maxMessage-1024)
	}
	l, err := p.net.link(to)
	if err != nil {
		return err
	}
	if err := l.slots.Acquire(ctx, 1); err != nil {
		return l.unreachable(ctx, err)
	}
	defer l.slots.Release(1)
	if err := l.bytes.Acquire(ctx, size); err != nil {
		return l.unreachable(ctx, err)
	}
	defer l.bytes.Release(size)
	reply, err := l.client.Forward(ctx, &peerpb.ForwardRequest{Entry: batch.Entry, Oldest: batch.Oldest})
	if err != nil {
		return l.unreachable(ctx, err)
	}
	return decodeError(reply.GetError())
}

// ReadIndex implements raftstore.Peers.
func (p peers) ReadIndex(ctx context.Context, to string) (uint64, error) {
	l, err := p.net.link(to)
	if err != nil {
		return 0, err
	}
	reply, err := l.client.ReadIndex(ctx, &peerpb.ReadIndexRequest{})
	if err != nil {
		return 0, l.unreachable(ctx, err)
	}
	return reply.GetIndex(), decodeError(reply.GetError())
}

// KeepAlive implements raftstore.Peers.
func (p peers) KeepAlive(ctx context.Context, to string, id raftstore.LeaseID) (time.Duration, error) {
	return p.lease(ctx, to, id, peerpb.PeersClient.KeepAlive)
}

// LeaseRemaining implements raftstore.Peers.
func (p peers) LeaseRemaining(ctx context.Context, to string, id raftstore.LeaseID) (time.Duration, error) {
	return p.lease(ctx, to, id, peerpb.PeersClient.LeaseRemaining)
}

type leaseMethod func(peerpb.PeersClient, context.Context, *peerpb.LeaseRequest, ...grpc.CallOption) (*peerpb.LeaseReply, error)

func (p peers) lease(ctx context.Context, to string, id raftstore.LeaseID, ask leaseMethod) (time.Duration, error) {
	l, err := p.net.link(to)
	if err != nil {
		return 0, err
	}
	reply, err := ask(l.client, ctx, &peerpb.LeaseRequest{Id: int64(id)})
	if err != nil {
		return 0, l.unreachable(ctx, err)
	}
	if err := decodeError(reply.GetError()); err != nil {
		return 0, err
	}
	return time.Duration(reply.GetTime()), nil
}

// Reachable reports whether there is a connection for requests to the peer now. It does not dial.
func (n *Network) Reachable(serverID string) bool {
	n.mu.Lock()
	l := n.links[serverID]
	n.mu.Unlock()
	if l == nil {
		return false
	}
	c := l.conn.Load()
	return c != nil && !c.closed.Load()
}
