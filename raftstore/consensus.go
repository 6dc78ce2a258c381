package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// consensus puts commands into the log. It is what the store knows of Raft:
// write a command, learn what applying it here gave; know that reads are
// current.
//
//	propose ─▶ outbox ─▶ send ─┬─ leads here ─▶ append ─▶ Raft ─▶ machine ─▶ outbox.settle
//	                           └─ elsewhere ─▶ Peers.Forward ─▶ its Forwarded ─▶ append
type consensus struct {
	raft   *raft.Raft
	id     string // of this peer
	trans  raft.Transport
	beats  *heartbeats // trans, as Raft's requests come in by it
	peers  Peers       // nil reaches nobody
	disk   *disk       // nil in memory
	m      *machine
	out    *outbox
	ledger ledger
	reads  reads
	links  links
	wake   chan struct{} // buffered: send has something to look at

	lead    *signal     // changes of leader or term
	handing atomic.Bool // this peer hands leadership over and appends nothing

	mu       sync.RWMutex // guards closing against tasks
	closing  bool
	closed   chan struct{}
	stopping context.Context // ends with closed
	stop     context.CancelFunc
	tasks    sync.WaitGroup
	asked    sync.WaitGroup // what Raft was asked and has not answered
	gone     chan struct{}  // closed when Raft answers nobody any more
}

func newConsensus(id string, m *machine, d *disk, trans raft.Transport, peers Peers) *consensus {
	c := &consensus{id: id, trans: trans, peers: peers, disk: d, m: m, out: newOutbox(),
		wake: make(chan struct{}, 1), lead: newSignal(), closed: make(chan struct{}), gone: make(chan struct{})}
	c.stopping, c.stop = context.WithCancel(context.Background())
	return c
}

// signal is an event that any number wait for.
type signal struct {
	mu sync.Mutex
	ch chan struct{}
}

func newSignal() *signal { return &signal{ch: make(chan struct{})} }

// next is closed when the event happens the next time.
func (s *signal) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ch
}

func (s *signal) raise() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ch)
	s.ch = make(chan struct{})
}

// begin admits one goroutine or refuses because the store closes. end pairs
// with it.
func (c *consensus) begin() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closing {
		return ErrClosed
	}
	c.tasks.Add(1)
	return nil
}

func (c *consensus) end() { c.tasks.Done() }

// spawn runs fn as a task, unless the store closes.
func (c *consensus) spawn(fn func()) bool {
	if c.begin() != nil {
		return false
	}
	go func() {
		defer c.end()
		fn()
	}()
	return true
}

func (c *consensus) refused() error {
	if c.disk == nil {
		return nil
	}
	return c.disk.refused()
}

// term is who leads, in which term.
type term struct {
	leader string // empty when nobody is known to
	number uint64
	here   bool // this peer leads
}

// who leads now, as far as is known here.
func (c *consensus) who() term {
	for {
		t := term{number: c.raft.CurrentTerm()}
		_, id := c.raft.LeaderWithID()
		t.here = c.raft.State() == raft.Leader
		if t.here || string(id) != c.id {
			t.leader = string(id)
		}
		if t.here {
			t.leader = c.id
		}
		if c.raft.CurrentTerm() == t.number {
			return t
		}
	}
}

// leading reports whether this peer leads and has applied everything of earlier
// terms.
func (c *consensus) leading() bool {
	t := c.who()
	_, reached := c.m.reach.at()
	return t.here && reached == t.number
}

// sole reports whether this peer is the only voter.
func (c *consensus) sole() bool {
	voters, self := 0, false
	for _, s := range c.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage == raft.Voter {
			voters++
			self = self || string(s.ID) == c.id
		}
	}
	return voters == 1 && self
}

// followed reports whether this peer leads and is not the only voter, so that no
// majority has this peer alone.
func (c *consensus) followed() bool { return c.raft.State() == raft.Leader && !c.sole() }

// stepDown makes Raft look at the disk once more, whose refusal ends the
// leadership: nobody else writes while writes are refused.
func (c *consensus) stepDown() {
	if c.raft.State() != raft.Leader {
		return
	}
	c.spawn(func() { _ = c.markTerm() })
}

// start lets this peer propose and answer. Its goroutines end with close.
func (c *consensus) start() {
	seen := make(chan raft.Observation, 16)
	o := raft.NewObserver(seen, true, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.LeaderObservation, raft.RaftState:
			return true
		}
		return false
	})
	c.raft.RegisterObserver(o)
	c.tasks.Add(2)
	go func() {
		defer c.end()
		c.observe(seen)
		// Raft must not block on an observer nobody reads.
		done := make(chan struct{})
		go func() {
			c.raft.DeregisterObserver(o)
			close(done)
		}()
		for {
			select {
			case <-seen:
			case <-done:
				return
			}
		}
	}()
	go func() {
		defer c.end()
		c.send()
	}()
}

// observe turns what Raft tells into wake-ups, and marks the terms this peer
// leads.
func (c *consensus) observe(seen <-chan raft.Observation) {
	marked := uint64(0)
	mark := func() {
		if t := c.who(); t.here && t.number != marked {
			marked = t.number
			c.spawn(func() { _ = c.markTerm() }) // the next term marks itself
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

// markTerm writes the entry by which every peer knows that it has applied
// everything of earlier terms.
func (c *consensus) markTerm() error {
	mark := mvcc.Command{Kind: mvcc.KindTerm}
	b := batch{origin: c.m.origin, term: c.raft.CurrentTerm(), items: []batchItem{{command: mark.Encode()}}}
	return c.ask(func() raft.Future { return c.raft.ApplyLog(raft.Log{Data: b.encode()}, enqueueTimeout) })
}

// ask asks Raft for something and waits for the answer. Raft does not answer
// what it holds when it is shut down, or when its disk never comes back.
func (c *consensus) ask(request func() raft.Future) error {
	c.mu.RLock()
	if c.closing {
		c.mu.RUnlock()
		return ErrClosed
	}
	c.asked.Add(1)
	c.mu.RUnlock()
	done := make(chan error, 1)
	go func() {
		defer c.asked.Done()
		done <- request().Error()
	}()
	select {
	case err := <-done:
		return err
	case <-c.gone:
		return ErrClosed
	}
}

// answered waits until Raft owes no answer, for d at most.
func (c *consensus) answered(d time.Duration) {
	done := make(chan struct{})
	go func() {
		c.asked.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(d):
	}
}

func (c *consensus) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// settled hears from the machine what became of this peer's commands.
func (c *consensus) settled(fates []fate) {
	if c.out.settle(fates) {
		c.poke()
	}
}

// entered hears from the machine how far it has applied.
func (c *consensus) entered(index, number uint64) {
	if c.links.entered(number) {
		c.poke() // attempts of earlier terms are decided
		c.lead.raise()
	}
	if c.raft.State() == raft.Leader {
		c.spread(index, number)
	}
}

// explain turns an error of Raft's into one of ours.
func (c *consensus) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrRaftShutdown):
		return ErrClosed
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrAbortedByRestore):
		if r := c.refused(); r != nil {
			return r
		}
		return fmt.Errorf("%w: %w", ErrNoLeader, err)
	case errors.Is(err, raft.ErrEnqueueTimeout):
		if r := c.refused(); r != nil {
			return r
		}
		return fmt.Errorf("%w: the log did not take the entry within %v", ErrNoLeader, enqueueTimeout)
	}
	return err
}

// close ends Raft and waits for every goroutine that was admitted.
func (c *consensus) close() error {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	close(c.closed)
	c.stop()
	c.answered(closePatience)
	if c.disk != nil {
		close(c.disk.stop)
	}
	err := c.raft.Shutdown().Error()
	close(c.gone)
	if t, ok := c.trans.(io.Closer); ok {
		err = errors.Join(err, t.Close())
	}
	c.tasks.Wait()
	if c.disk != nil {
		err = errors.Join(err, c.disk.close())
	}
	return err
}
