package raftstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// confirmTimeout bounds one attempt to learn what is current.
const confirmTimeout = time.Second

// reads answers "what must be applied for a read to be current". Those who ask
// while one question is under way share the next.
type reads struct {
	mu      sync.Mutex
	running bool
	waiting *question // nil when nobody waits
}

type question struct {
	done chan struct{}
	err  error
}

// current returns when what is applied here includes every write acknowledged
// before the call (Raft's ReadIndex: Ongaro, "Consensus: Bridging Theory and
// Practice", 6.4). A sole voter acknowledges nothing before it is applied here,
// so it is always current.
func (c *consensus) current(ctx context.Context) error {
	if c.sole() {
		return nil
	}
	deadline := time.Now().Add(leaderPatience)
	for {
		q, err := c.inquire()
		if err != nil {
			return err
		}
		changed := c.lead.next()
		select {
		case <-q.done:
		case <-ctx.Done():
			return ctx.Err()
		case <-c.closed:
			return ErrClosed
		}
		if q.err == nil || errors.Is(q.err, ErrClosed) {
			return q.err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: what is current could not be learned within %v: %w", ErrNoLeader, leaderPatience, q.err)
		}
		select {
		case <-changed:
		case <-time.After(5 * failPause):
		case <-ctx.Done():
			return ctx.Err()
		case <-c.closed:
			return ErrClosed
		}
	}
}

// inquire joins the next question.
func (c *consensus) inquire() (*question, error) {
	r := &c.reads
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		r.waiting = &question{done: make(chan struct{})}
	}
	q := r.waiting
	if !r.running {
		r.running = true
		if !c.spawn(c.answer) {
			r.running, r.waiting = false, nil
			return nil, ErrClosed
		}
	}
	return q, nil
}

// answer answers questions until there are none.
func (c *consensus) answer() {
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
		q.err = c.learn()
		close(q.done)
	}
}

// learn asks the leader once and waits until its answer is applied here.
func (c *consensus) learn() error {
	t := c.who()
	if t.leader == "" {
		return ErrNoLeader
	}
	ctx, cancel := context.WithTimeout(c.stopping, confirmTimeout)
	defer cancel()
	var index uint64
	var err error
	switch {
	case t.here:
		index, err = c.readIndex(ctx)
	case c.peers == nil:
		err = ErrUnreachable
	default:
		index, err = c.peers.ReadIndex(ctx, t.leader)
	}
	if err != nil {
		return err
	}
	if err := c.m.reach.await(ctx, index); err != nil {
		return fmt.Errorf("%w: entry %d is not applied here yet", ErrNoLeader, index)
	}
	return nil
}

// readIndex is, on the leader, the index of an entry that follows every write
// acknowledged before the call. The commit index is one once an entry of this
// term is committed and a quorum has answered, after the call, that it knows no
// later term: answers sent before would let a leader that was frozen, and
// replaced, believe them.
func (c *consensus) readIndex(ctx context.Context) (uint64, error) {
	t := c.who()
	if !t.here {
		return 0, ErrNotLeader
	}
	if err := c.marked(ctx, t.number); err != nil {
		return 0, err
	}
	commit := c.raft.CommitIndex()
	if !c.sole() {
		if err := c.confirm(ctx, t.number); err != nil {
			return 0, err
		}
	}
	if now := c.who(); !now.here || now.number != t.number {
		return 0, ErrNotLeader
	}
	if err := c.m.reach.await(ctx, commit); err != nil {
		return 0, fmt.Errorf("%w: the leader has not applied entry %d yet", ErrNoLeader, commit)
	}
	index, _, _ := c.m.reach.next()
	return index, nil
}

// stillLeads confirms that this peer, which led in t before the call, led when
// it was called. Those who ask at once share a round.
func (c *consensus) stillLeads(ctx context.Context, t term) error {
	if c.sole() {
		return nil
	}
	q, err := c.inquire()
	if err != nil {
		return err
	}
	select {
	case <-q.done:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.closed:
		return ErrClosed
	}
	if now := c.who(); q.err != nil || now != t {
		return ErrNotLeader
	}
	return nil
}

// marked waits until this peer has applied the mark of the term it leads.
func (c *consensus) marked(ctx context.Context, number uint64) error {
	for {
		_, reached, moved := c.m.reach.next()
		if reached == number {
			return nil
		}
		changed := c.lead.next()
		if now := c.who(); !now.here || now.number != number {
			return ErrNotLeader
		}
		select {
		case <-moved:
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: a new leader has not caught up yet", ErrNoLeader)
		}
	}
}

// confirm returns when a quorum has answered, to a question sent after the
// call, that it follows this leader.
func (c *consensus) confirm(ctx context.Context, number uint64) error {
	r := &round{term: number, decided: make(chan struct{})}
	var others []raft.ServerID
	voters := 0
	for _, s := range c.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if string(s.ID) == c.id {
			r.acks++
		} else {
			others = append(others, s.ID)
		}
	}
	r.need = voters/2 + 1
	if r.acks >= r.need {
		return nil
	}
	for _, id := range others {
		c.links.to(id).confirm(c, r)
	}
	select {
	case <-r.decided:
		if r.deposed {
			return fmt.Errorf("%w: a later term has begun", ErrNotLeader)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: no quorum answers", ErrNoLeader)
	}
}
