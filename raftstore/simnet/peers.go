package simnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/balsahq/balsa/raftstore"
)

// servePatience bounds how long a store may work on a request whose sender set no deadline.
const servePatience = 5 * time.Second

type peers struct{ *Node }

var _ raftstore.Peers = peers{}

// Peers returns the carrier of this process's requests to other stores. Each request may arrive twice.
func (p *Node) Peers() raftstore.Peers { return peers{p} }

// Serve makes h answer other stores' requests from now on.
func (p *Node) Serve(h raftstore.Handler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handler = h
}

// Forward implements raftstore.Peers.
func (p peers) Forward(ctx context.Context, to string, b raftstore.Batch) error {
	_, err := ask(ctx, p, to, func(ctx context.Context, h raftstore.Handler) (struct{}, error) {
		c := b
		c.Entry = bytes.Clone(b.Entry)
		return struct{}{}, h.Forwarded(ctx, c)
	})
	return err
}

// ReadIndex implements raftstore.Peers.
func (p peers) ReadIndex(ctx context.Context, to string) (uint64, error) {
	return ask(ctx, p, to, func(ctx context.Context, h raftstore.Handler) (uint64, error) { return h.ServeReadIndex(ctx) })
}

// KeepAlive implements raftstore.Peers.
func (p peers) KeepAlive(ctx context.Context, to string, id raftstore.LeaseID) (time.Duration, error) {
	return ask(ctx, p, to, func(ctx context.Context, h raftstore.Handler) (time.Duration, error) {
		return h.ServeKeepAlive(ctx, id)
	})
}

// LeaseRemaining implements raftstore.Peers.
func (p peers) LeaseRemaining(ctx context.Context, to string, id raftstore.LeaseID) (time.Duration, error) {
	return ask(ctx, p, to, func(ctx context.Context, h raftstore.Handler) (time.Duration, error) {
		return h.ServeLeaseRemaining(ctx, id)
	})
}

// ask sends one request between stores, twice if the link says so.
func ask[T any](ctx context.Context, p peers, to string, fn func(context.Context, raftstore.Handler) (T, error)) (T, error) {
	f := p.net.draw(p.id, to)
	serve := func(q *Node) (any, error) {
		ctx, cancel := q.serving(ctx, f.cancelArrive)
		defer cancel()
		q.mu.Lock()
		h := q.handler
		q.mu.Unlock()
		if h == nil {
			return nil, errRefused
		}
		return fn(ctx, h)
	}
	if f.twice && !f.lost {
		p.net.work.Go(func() {
			if q, err := p.travel(to, fate{delay: f.again}); err == nil {
				_, _ = serve(q) // the answer to the copy is dropped
			}
		})
	}
	v, err := p.call(ctx, to, f, servePatience, serve)
	if err != nil {
		var zero T
		return zero, remote(err)
	}
	return v.(T), nil
}

// serving returns the context under which a request is served: it has the sender's deadline, ends with this process, and ends when the
// sender gives up if cancelArrives is set.
func (p *Node) serving(asker context.Context, cancelArrives bool) (context.Context, context.CancelFunc) {
	deadline, ok := asker.Deadline()
	if !ok {
		deadline = time.Now().Add(servePatience)
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	stop := func() bool { return true }
	if cancelArrives {
		stop = context.AfterFunc(asker, cancel)
	}
	ended := make(chan struct{})
	p.net.work.Go(func() {
		select {
		case <-p.dead:
			cancel()
		case <-ended:
		}
	})
	return ctx, func() { stop(); close(ended); cancel() }
}

// remote returns a failure as the asking store gets it.
func remote(err error) error {
	for _, local := range []error{errRefused, errReset, errTimeout, errDead, errLost, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, local) {
			return fmt.Errorf("%w: %w", raftstore.ErrUnreachable, err)
		}
	}
	return err
}
