package raftstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// How long a write waits for Raft: without any leader, with one, to be queued,
// and between two looks at what has had no answer.
const (
	leaderPatience = 5 * time.Second
	answerPatience = 20 * time.Second
	resendAfter    = time.Second
	failPause      = 10 * time.Millisecond
	enqueueTimeout = 5 * time.Second
	closePatience  = 2 * time.Second
	faultInterval  = 250 * time.Millisecond
)

// window is how many batches of this peer are on their way at once. While they
// are, the next one fills.
const window = 3

// propose appends a command to the log and returns what applying it here gave.
// After the end of ctx, ErrNoLeader or a disk error it may be applied yet.
func (c *consensus) propose(ctx context.Context, entry []byte) (mvcc.Applied, error) {
	return c.proposeIn(ctx, entry, 0)
}

// proposeIn is propose for a command that has no business in any term but only,
// if that is not 0: ErrNotLeader when it was not proposed in that one.
func (c *consensus) proposeIn(ctx context.Context, entry []byte, only uint64) (mvcc.Applied, error) {
	if err := ctx.Err(); err != nil {
		return mvcc.Applied{}, err
	}
	if err := c.refused(); err != nil {
		return mvcc.Applied{}, err
	}
	w := c.out.put(entry, only)
	c.poke()
	select {
	case o := <-w.done:
		return o.applied, o.err
	case <-ctx.Done():
		c.out.drop(w)
		return mvcc.Applied{}, ctx.Err()
	case <-c.closed:
		c.out.drop(w)
		return mvcc.Applied{}, ErrClosed
	}
}

// send proposes what is in the outbox, as long as the store is open.
func (c *consensus) send() {
	free := make(chan struct{}, window)
	for range window {
		free <- struct{}{}
	}
	tick := time.NewTimer(time.Hour)
	defer tick.Stop()
	idle := true
	for {
		select {
		case <-c.closed:
			c.out.fail(time.Time{}, ErrClosed)
			return
		case <-c.wake:
			if idle {
				tick.Reset(faultInterval)
				idle = false
			}
		case <-tick.C:
			c.review()
			if idle = c.out.empty(); !idle {
				tick.Reset(faultInterval)
			}
		}
		c.fill(free)
	}
}

// fill sends batches until there is nothing to send, nobody to send to, or
// enough is on its way.
func (c *consensus) fill(free chan struct{}) {
	for {
		t := c.who()
		if t.leader == "" {
			return
		}
		select {
		case <-free:
		default:
			return // the end of a batch wakes send
		}
		// What was applied counts once its proposers know: else an attempt that
		// had its effect a moment ago would be made again.
		_, reached := c.m.reach.at()
		ws, oldest := c.out.take(t.number, reached)
		if len(ws) == 0 || !c.spawn(func() {
			c.attempt(t, ws, oldest)
			free <- struct{}{}
			c.poke()
		}) {
			free <- struct{}{}
			return
		}
	}
}

// attempt brings one batch to the leader's log. What does not get there is
// queued again.
func (c *consensus) attempt(t term, ws []*wait, oldest uint64) {
	b := batch{origin: c.m.origin, term: t.number, items: make([]batchItem, len(ws))}
	for i, w := range ws {
		b.items[i] = batchItem{seq: w.seq, command: w.command}
	}
	var err error
	switch {
	case t.here:
		err = c.append(&b, nil, oldest)
	case c.peers == nil:
		err = fmt.Errorf("%w: %s leads, and this peer was given no way to reach others", ErrUnreachable, t.leader)
	default:
		ctx, cancel := context.WithTimeout(c.stopping, enqueueTimeout)
		err = c.peers.Forward(ctx, t.leader, Batch{Entry: b.encode(), Oldest: oldest})
		cancel()
	}
	if err == nil {
		return
	}
	next := c.lead.next()
	select {
	case <-time.After(failPause):
	case <-next:
	case <-c.closed:
		return
	}
	c.out.again(ws, t.number)
}

// append puts a batch into this peer's own log, without what the log took in
// this term before, and returns when it is applied here. entry is the batch
// encoded, nil when it is not yet.
func (c *consensus) append(b *batch, entry []byte, oldest uint64) error {
	if t := c.who(); !t.here || t.number != b.term || c.handing.Load() {
		return ErrNotLeader
	}
	if err := c.refused(); err != nil {
		return err
	}
	fresh := c.ledger.enter(b, oldest)
	if len(fresh) == 0 {
		return nil
	}
	if entry == nil || len(fresh) < len(b.items) {
		b = &batch{origin: b.origin, term: b.term, items: fresh}
		entry = b.encode()
	}
	err := c.ask(func() raft.Future { return c.raft.ApplyLog(raft.Log{Data: entry}, enqueueTimeout) })
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		c.ledger.strike(b) // it did not get into the log
	}
	return c.explain(err)
}

// forwarded answers another peer's Forward.
func (c *consensus) forwarded(fb Batch) error {
	b, err := decodeBatch(fb.Entry)
	if err == nil {
		err = b.known()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := c.begin(); err != nil {
		return err
	}
	defer c.end()
	return c.append(b, fb.Entry, fb.Oldest)
}

// review looks at what has had no answer for a while.
func (c *consensus) review() {
	now := time.Now()
	if err := c.refused(); err != nil {
		c.out.fail(time.Time{}, err)
		return
	}
	if h := c.m.halted.Load(); h != nil {
		c.out.fail(time.Time{}, *h)
		return
	}
	t := c.who()
	if t.leader == "" {
		c.out.fail(now.Add(-leaderPatience), tooLong(fmt.Sprintf("waited %v for one", leaderPatience)))
		return
	}
	c.out.fail(now.Add(-answerPatience), tooLong(fmt.Sprintf("no answer for %v", answerPatience)))
	c.out.overdue(now.Add(-resendAfter), t.number)
}
