package consensus

import (
	"context"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/mvcc"
	"github.com/balsahq/balsa/raftstore/raftfix"
)

// Term returns the current term and its leader as this server knows them.
func (c *Consensus) Term() raftfix.Term { return c.server.Term() }

// Leading reports whether this server leads and has applied everything of earlier terms.
func (c *Consensus) Leading() bool {
	t := c.Term()
	_, reached := c.cfg.Progress.At()
	return t.Here && reached == t.Number
}

// Sole reports whether this server is the only voter.
func (c *Consensus) Sole() bool { return c.server.Sole() }

// LeaderChanged returns a channel that closes at the next change of leader or term. It may close without one.
func (c *Consensus) LeaderChanged() <-chan struct{} { return c.lead.next() }

// Transfer makes another voter lead: see raftfix.Handover.
func (c *Consensus) Transfer(ctx context.Context, to string) error {
	return c.handover.Transfer(ctx, to)
}

// PeerEnded handles the report that a server's process has ended: see raftfix.Succession.
func (c *Consensus) PeerEnded(id string) { c.succession.PeerEnded(id) }

// followed reports whether this server leads and is not the only voter, so that every majority includes another server.
func (c *Consensus) followed() bool { return c.Raft().State() == raft.Leader && !c.Sole() }

// stepDown makes Raft append once more to a disk that refuses, which ends the leadership: a server that cannot write must not
// lead.
func (c *Consensus) stepDown() {
	if c.Raft().State() != raft.Leader {
		return
	}
	c.Spawn(func() { _ = c.markTerm() })
}

// watchLeadership starts the goroutine that observes Raft.
func (c *Consensus) watchLeadership() {
	seen := make(chan raft.Observation, 16)
	o := raft.NewObserver(seen, true, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.LeaderObservation, raft.RaftState:
			return true
		}
		return false
	})
	c.Raft().RegisterObserver(o)
	c.Spawn(func() {
		c.observe(seen)
		// Raft blocks on an observer that is not read, so it is read until it is deregistered.
		done := make(chan struct{})
		go func() {
			c.Raft().DeregisterObserver(o)
			close(done)
		}()
		for {
			select {
			case <-seen:
			case <-done:
				return
			}
		}
	})
}

// observe wakes those that wait for a change of leader, and marks the terms in which this server leads.
func (c *Consensus) observe(seen <-chan raft.Observation) {
	marked := uint64(0)
	mark := func() {
		if t := c.Term(); t.Here && t.Number != marked {
			marked = t.Number
			c.Spawn(func() { _ = c.markTerm() }) // an error ends the term, and the next term marks itself
		}
	}
	mark()
	for {
		select {
		case <-seen:
			mark()
			c.lead.raise()
			c.poke()
		case <-c.closed:
			return
		}
	}
}

// markTerm appends the entry by which every server knows that it has applied everything of earlier terms.
func (c *Consensus) markTerm() error {
	mark := mvcc.Command{Kind: mvcc.KindTerm}
	e := Entry{Origin: c.cfg.Origin, Term: c.Raft().CurrentTerm(), Items: []Item{{Command: mark.Encode()}}}
	return c.ask(func() raft.Future { return c.Raft().ApplyLog(raft.Log{Data: e.Encode()}, enqueueTimeout) })
}

// lastTerm is the term of the last applied entry.
type lastTerm struct {
	mu     sync.Mutex
	number uint64
}

// enter reports whether number is later than every term before.
func (l *lastTerm) enter(number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	later := number > l.number
	l.number = max(l.number, number)
	return later
}

// Applied is called by the state after it has applied entry number index, of the given term.
func (c *Consensus) Applied(index, term uint64) {
	<-c.ready
	if c.lastTerm.enter(term) {
		c.poke() // the outcome of attempts in earlier terms is known now
		c.lead.raise()
	}
	if c.Raft().State() == raft.Leader {
		c.commits.Notify(index, term)
	}
}
