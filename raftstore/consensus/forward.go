package consensus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/errdefs"
	"github.com/balsahq/balsa/raftstore/mvcc"
	"github.com/balsahq/balsa/raftstore/raftfix"
)

const (
	// LeaderPatience is how long a request waits for a leader.
	LeaderPatience = 5 * time.Second
	// answerPatience is how long a write waits for its answer while there is a leader.
	answerPatience = 20 * time.Second
	// resendAfter is after how long a write without an answer is sent again.
	resendAfter = time.Second
	// FailPause is the delay after an attempt that failed.
	FailPause = 10 * time.Millisecond
	// enqueueTimeout bounds how long Raft's queue may take to accept an entry, and how long a batch is on its way.
	enqueueTimeout = 5 * time.Second
	// reviewInterval is how often writes without an answer are looked at.
	reviewInterval = 250 * time.Millisecond
)

// window is how many batches of this server are on their way at once. Meanwhile the next batch fills.
const window = 3

// Batch is an Entry on its way to the leader.
type Batch struct {
	// Entry is an encoded Entry, opaque to the carrier.
	Entry []byte
	// Oldest is the lowest sequence number that the origin still waits for. Commands below it are finished and must not be
	// appended again.
	Oldest uint64
}

// Propose appends a command to the log and returns its effect here. After the end of ctx, ErrNoLeader or a disk error it may
// take effect later.
func (c *Consensus) Propose(ctx context.Context, command []byte) (mvcc.Applied, error) {
	return c.ProposeIn(ctx, command, 0)
}

// ProposeIn is Propose for a command that makes sense in one term only: ErrNotLeader when it was not proposed in that term. With
// term 0 every term will do.
func (c *Consensus) ProposeIn(ctx context.Context, command []byte, term uint64) (mvcc.Applied, error) {
	if err := ctx.Err(); err != nil {
		return mvcc.Applied{}, err
	}
	if err := c.Refused(); err != nil {
		return mvcc.Applied{}, err
	}
	p := c.out.add(command, term)
	c.poke()
	select {
	case o := <-p.done:
		return o.applied, o.err
	case <-ctx.Done():
		c.out.drop(p)
		return mvcc.Applied{}, ctx.Err()
	case <-c.closed:
		c.out.drop(p)
		return mvcc.Applied{}, errdefs.ErrClosed
	}
}

// Settle answers the proposers of this server's commands that were applied. The state calls it before it advances Progress.
func (c *Consensus) Settle(results []Result) {
	if c.out.settle(results) {
		c.poke()
	}
}

// FailSent answers the proposers of every command that was sent, because a restored snapshot hides the commands' effects.
func (c *Consensus) FailSent() { c.out.failSent() }

// poke wakes send.
func (c *Consensus) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// send sends proposals as long as the store is open.
func (c *Consensus) send() {
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
			c.out.fail(time.Time{}, errdefs.ErrClosed)
			return
		case <-c.wake:
			if idle {
				tick.Reset(reviewInterval)
				idle = false
			}
		case <-tick.C:
			c.review()
			if idle = c.out.empty(); !idle {
				tick.Reset(reviewInterval)
			}
		}
		c.sendBatches(free)
	}
}

// sendBatches sends batches until there is nothing to send, no leader, or no free place in the window.
func (c *Consensus) sendBatches(free chan struct{}) {
	for {
		t := c.Term()
		if t.Leader == "" {
			return
		}
		select {
		case <-free:
		default:
			return // the end of a batch wakes send
		}
		// Progress moves after the proposers have their answers. With an earlier measure, an attempt that had its effect a
		// moment ago would be made again.
		_, reached := c.cfg.Progress.At()
		ps, oldest := c.out.nextBatch(t.Number, reached)
		if len(ps) == 0 || !c.Spawn(func() {
			c.attempt(t, ps, oldest)
			free <- struct{}{}
			c.poke()
		}) {
			free <- struct{}{}
			return
		}
	}
}

// attempt brings one batch to the leader's log. Commands that do not get there are queued again.
func (c *Consensus) attempt(t raftfix.Term, ps []*proposal, oldest uint64) {
	e := Entry{Origin: c.cfg.Origin, Term: t.Number, Items: make([]Item, len(ps))}
	for i, p := range ps {
		e.Items[i] = Item{Seq: p.seq, Command: p.command}
	}
	var err error
	switch {
	case t.Here:
		err = c.append(&e, nil, oldest)
	case c.cfg.Peers == nil:
		err = fmt.Errorf("%w: server %s leads, and this server was given no way to reach others", errdefs.ErrUnreachable, t.Leader)
	default:
		ctx, cancel := context.WithTimeout(c.ctx, enqueueTimeout)
		err = c.cfg.Peers.Forward(ctx, t.Leader, Batch{Entry: e.Encode(), Oldest: oldest})
		cancel()
	}
	if err == nil {
		return
	}
	next := c.lead.next()
	select {
	case <-time.After(FailPause):
	case <-next:
	case <-c.closed:
		return
	}
	c.out.requeue(ps, t.Number)
}

// append puts an entry into this server's own log, without the commands that the log took in this term before, and returns when
// it is applied here. encoded is the encoded entry, nil when it is not encoded yet.
func (c *Consensus) append(e *Entry, encoded []byte, oldest uint64) error {
	if t := c.Term(); !t.Here || t.Number != e.Term || c.handover.Active() {
		return errdefs.ErrNotLeader
	}
	if err := c.Refused(); err != nil {
		return err
	}
	fresh := c.ledger.enter(e, oldest)
	if len(fresh) == 0 {
		return nil
	}
	if encoded == nil || len(fresh) < len(e.Items) {
		e = &Entry{Origin: e.Origin, Term: e.Term, Items: fresh}
		encoded = e.Encode()
	}
	err := c.ask(func() raft.Future { return c.Raft().ApplyLog(raft.Log{Data: encoded}, enqueueTimeout) })
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		c.ledger.strike(e) // it did not get into the log
	}
	return c.Explain(err)
}

// Forwarded appends a batch that another server forwarded to this one.
func (c *Consensus) Forwarded(b Batch) error {
	e, err := DecodeEntry(b.Entry)
	if err == nil {
		err = e.checkKnown()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errdefs.ErrInvalid, err)
	}
	if err := c.Begin(); err != nil {
		return err
	}
	defer c.End()
	return c.append(e, b.Entry, b.Oldest)
}

// review fails proposals that waited too long and queues overdue ones again.
func (c *Consensus) review() {
	now := time.Now()
	if err := c.Refused(); err != nil {
		c.out.fail(time.Time{}, err)
		return
	}
	if err := c.cfg.Halted(); err != nil {
		c.out.fail(time.Time{}, err)
		return
	}
	t := c.Term()
	if t.Leader == "" {
		c.out.fail(now.Add(-LeaderPatience), unknownOutcome(fmt.Sprintf("waited %v for one", LeaderPatience)))
		return
	}
	c.out.fail(now.Add(-answerPatience), unknownOutcome(fmt.Sprintf("no answer for %v", answerPatience)))
	c.out.requeueOverdue(now.Add(-resendAfter), t.Number)
}
