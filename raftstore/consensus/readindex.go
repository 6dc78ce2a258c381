package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/balsahq/balsa/raftstore/errdefs"
	"github.com/balsahq/balsa/raftstore/raftfix"
)

// readIndexTimeout bounds one attempt to learn the read index.
const readIndexTimeout = time.Second

// reads are the reads that wait to be current. Reads that begin while a request for the read index is under way share the next
// one.
type reads struct {
	mu      sync.Mutex
	running bool
	waiting *readRequest // the next request, nil when no read waits
}

// readRequest is one request for the read index.
type readRequest struct {
	done chan struct{}
	err  error
}

// AwaitCurrent returns nil when the state here includes every write acknowledged before the call (Raft's ReadIndex: Ongaro,
// "Consensus: Bridging Theory and Practice", 6.4). A sole voter acknowledges nothing before it is applied here, so it is always
// current.
func (c *Consensus) AwaitCurrent(ctx context.Context) error {
	if c.Sole() {
		return nil
	}
	deadline := time.Now().Add(LeaderPatience)
	for {
		q, err := c.joinReadRequest()
		if err != nil {
			return err
		}
		changed := c.lead.next()
		select {
		case <-q.done:
		case <-ctx.Done():
			return ctx.Err()
		case <-c.closed:
			return errdefs.ErrClosed
		}
		if q.err == nil || errors.Is(q.err, errdefs.ErrClosed) {
			return q.err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: the read index could not be learned within %v: %w", errdefs.ErrNoLeader, LeaderPatience, q.err)
		}
		select {
		case <-changed:
		case <-time.After(5 * FailPause):
		case <-ctx.Done():
			return ctx.Err()
		case <-c.closed:
			return errdefs.ErrClosed
		}
	}
}

// joinReadRequest returns the next request for the read index.
func (c *Consensus) joinReadRequest() (*readRequest, error) {
	r := &c.reads
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		r.waiting = &readRequest{done: make(chan struct{})}
	}
	q := r.waiting
	if !r.running {
		r.running = true
		if !c.Spawn(c.answerReads) {
			r.running, r.waiting = false, nil
			return nil, errdefs.ErrClosed
		}
	}
	return q, nil
}

// answerReads makes requests for the read index as long as reads wait.
func (c *Consensus) answerReads() {
	r := &c.reads
	for {
		r.mu.Lock()
		q := r.waiting
		r.waiting = nil
		if q == nil {
			r.running = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		q.err = c.reachReadIndex()
		close(q.done)
	}
}

// reachReadIndex asks the leader for the read index once and waits until it is applied here.
func (c *Consensus) reachReadIndex() error {
	t := c.Term()
	if t.Leader == "" {
		return errdefs.ErrNoLeader
	}
	ctx, cancel := context.WithTimeout(c.ctx, readIndexTimeout)
	defer cancel()
	var index uint64
	var err error
	switch {
	case t.Here:
		index, err = c.readIndex(ctx)
	case c.cfg.Peers == nil:
		err = errdefs.ErrUnreachable
	default:
		index, err = c.cfg.Peers.ReadIndex(ctx, t.Leader)
	}
	if err != nil {
		return err
	}
	if err := c.cfg.Progress.Await(ctx, index); err != nil {
		return fmt.Errorf("%w: entry %d is not applied here yet", errdefs.ErrNoLeader, index)
	}
	return nil
}

// ReadIndex answers another server's request for the read index: ErrNotLeader when this server does not lead.
func (c *Consensus) ReadIndex(ctx context.Context) (uint64, error) {
	if err := c.Begin(); err != nil {
		return 0, err
	}
	defer c.End()
	ctx, cancel := context.WithTimeout(ctx, readIndexTimeout)
	defer cancel()
	return c.readIndex(ctx)
}

// readIndex returns, on the leader, the index of an entry that follows every write acknowledged before the call. The commit index
// is one once an entry of this term is committed and a quorum has answered, after the call, that it knows no later term. Answers
// sent before the call prove nothing: a leader that was frozen and replaced meanwhile would believe them.
func (c *Consensus) readIndex(ctx context.Context) (uint64, error) {
	t := c.Term()
	if !t.Here {
		return 0, errdefs.ErrNotLeader
	}
	if err := c.awaitTermMark(ctx, t.Number); err != nil {
		return 0, err
	}
	commit := c.Raft().CommitIndex()
	if !c.Sole() {
		if err := c.confirm.Confirm(ctx, t.Number); err != nil {
			return 0, err
		}
	}
	if now := c.Term(); !now.Here || now.Number != t.Number {
		return 0, errdefs.ErrNotLeader
	}
	if err := c.cfg.Progress.Await(ctx, commit); err != nil {
		return 0, fmt.Errorf("%w: the leader has not applied entry %d yet", errdefs.ErrNoLeader, commit)
	}
	index, _ := c.cfg.Progress.At()
	return index, nil
}

// StillLeads returns nil when this server, which led in t before the call, led when it was called, and ErrNotLeader otherwise.
// Concurrent calls share a request.
func (c *Consensus) StillLeads(ctx context.Context, t raftfix.Term) error {
	if c.Sole() {
		return nil
	}
	q, err := c.joinReadRequest()
	if err != nil {
		return err
	}
	select {
	case <-q.done:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.closed:
		return errdefs.ErrClosed
	}
	if now := c.Term(); q.err != nil || now != t {
		return errdefs.ErrNotLeader
	}
	return nil
}

// awaitTermMark returns nil when this server has applied the mark of the term in which it leads.
func (c *Consensus) awaitTermMark(ctx context.Context, term uint64) error {
	for {
		_, reached, moved := c.cfg.Progress.Next()
		if reached == term {
			return nil
		}
		changed := c.lead.next()
		if now := c.Term(); !now.Here || now.Number != term {
			return errdefs.ErrNotLeader
		}
		select {
		case <-moved:
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: a new leader has not caught up yet", errdefs.ErrNoLeader)
		}
	}
}
