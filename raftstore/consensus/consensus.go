package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/errdefs"
	"github.com/balsahq/balsa/raftstore/raftfix"
	"github.com/balsahq/balsa/raftstore/raftlog"
)

// Config says what a Consensus works with.
type Config struct {
	ServerID string
	// Origin tells the commands of this run of this server from all others.
	Origin uint64
	// Progress is advanced by the state, after it has called Settle.
	Progress *Progress
	// Halted returns the error with which the state stopped applying entries, nil while it applies them.
	Halted func() error
	// Log is Raft's log, nil when it is in memory.
	Log *raftlog.Store
	// Transport carries Raft to other servers; it is closed with the Consensus if it can be closed.
	Transport raft.Transport
	// Peers carries this package's own requests to other servers; nil reaches none.
	Peers Peers
	// AppendFirst makes a leader write its log before its followers write theirs: see raftlog.Store.WriteBeside.
	AppendFirst bool
}

// Peers carries requests to other servers.
type Peers interface {
	// Forward hands a batch of commands to the server `to`, which leads as far as this server knows, and returns when that
	// server's log has taken or refused it. A nil error says nothing about commitment: the sender learns of it by applying the
	// batch itself.
	Forward(ctx context.Context, to string, batch Batch) error
	// ReadIndex asks the leader for the index of an entry such that a server that has applied it has applied every write
	// acknowledged before the call.
	ReadIndex(ctx context.Context, to string) (uint64, error)
}

// Consensus is this server's part in Raft.
type Consensus struct {
	cfg        Config
	server     *raftfix.Server
	heartbeats *raftfix.Heartbeats // Raft's transport
	confirm    *raftfix.Confirmation
	commits    *raftfix.CommitNotifier
	handover   *raftfix.Handover
	succession raftfix.Succession

	out      *proposals
	ledger   ledger
	reads    reads
	wake     chan struct{}   // buffered: send has something to look at
	lead     *signal         // changes of leader or term
	ready    chan struct{}   // closed when Raft exists
	lastTerm lastTerm        // of the last applied entry
	mu       sync.RWMutex    // guards closing against tasks
	closing  bool            // no task starts any more
	closed   chan struct{}   // closed with closing
	ctx      context.Context // ends with closed
	stop     context.CancelFunc
	tasks    sync.WaitGroup
	asked    sync.WaitGroup // requests to Raft without an answer yet
	ended    chan struct{}  // closed when Raft answers no request any more
}

// New returns a Consensus that has not started.
func New(cfg Config) *Consensus {
	c := &Consensus{cfg: cfg, out: newProposals(), wake: make(chan struct{}, 1), lead: newSignal(),
		ready: make(chan struct{}), closed: make(chan struct{}), ended: make(chan struct{})}
	c.ctx, c.stop = context.WithCancel(context.Background())
	var terms raftfix.TermLock
	if cfg.Log != nil {
		terms = cfg.Log
	}
	c.heartbeats = raftfix.NewHeartbeats(raftlog.NewAckTransport(raftfix.Ballot{Transport: cfg.Transport}, cfg.Log), terms, c.ended)
	c.server = &raftfix.Server{ID: cfg.ServerID, Transport: c.heartbeats, LeaderChanged: c.lead.next, Spawn: c.Spawn, Closed: c.closed}
	c.confirm = raftfix.NewConfirmation(c.server)
	c.commits = raftfix.NewCommitNotifier(c.server)
	c.handover = raftfix.NewHandover(c.server)
	c.succession = raftfix.Succession{Server: c.server, Requests: c.heartbeats}
	return c
}

// signal is an event that any number of goroutines wait for.
type signal struct {
	mu sync.Mutex
	ch chan struct{}
}

func newSignal() *signal { return &signal{ch: make(chan struct{})} }

// next returns a channel that closes when the event happens the next time.
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

// Start makes Raft with newRaft and lets this server propose and answer. The goroutines end with Close.
func (c *Consensus) Start(newRaft func(raft.Transport) (*raft.Raft, error)) error {
	r, err := newRaft(c.heartbeats)
	if err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	c.server.Raft = r
	close(c.ready)
	c.Spawn(func() { c.heartbeats.Run(r) })
	if c.cfg.Log != nil {
		c.cfg.Log.SetRunning() // from here on it is Raft's goroutine that writes
		if !c.cfg.AppendFirst {
			c.cfg.Log.WriteBeside(raftlog.Leader{Followed: c.followed, WriteFailed: c.stepDown})
		}
	}
	c.watchLeadership()
	c.Spawn(c.send)
	return nil
}

// Raft returns Raft. It must not be called before Start.
func (c *Consensus) Raft() *raft.Raft { return c.server.Raft }

// Begin admits one task, which Close waits for until End is called. It returns ErrClosed when the store closes.
func (c *Consensus) Begin() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closing {
		return errdefs.ErrClosed
	}
	c.tasks.Add(1)
	return nil
}

// End pairs with Begin.
func (c *Consensus) End() { c.tasks.Done() }

// Spawn runs fn as a task. It returns false, and runs nothing, when the store closes.
func (c *Consensus) Spawn(fn func()) bool {
	if c.Begin() != nil {
		return false
	}
	go func() {
		defer c.End()
		fn()
	}()
	return true
}

// Closed returns a channel that closes when the store begins to close.
func (c *Consensus) Closed() <-chan struct{} { return c.closed }

// Context returns a context that ends when the store begins to close.
func (c *Consensus) Context() context.Context { return c.ctx }

// Refused returns the disk's error with which writes are refused now, nil while they are accepted.
func (c *Consensus) Refused() error {
	if c.cfg.Log == nil {
		return nil
	}
	return c.cfg.Log.Refused()
}

// ask asks Raft for something and waits for the answer.
//
// Upstream: Raft never answers requests that it holds when it is shut down, or when its disk never comes back.
//
// Consequence: the caller would wait for ever. ask returns ErrClosed instead. Seed 28 of TestSeedsThatFailedOnce shows it.
func (c *Consensus) ask(request func() raft.Future) error {
	c.mu.RLock()
	if c.closing {
		c.mu.RUnlock()
		return errdefs.ErrClosed
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
	case <-c.ended:
		return errdefs.ErrClosed
	}
}

// Await waits for an answer of Raft's, or for ctx.
func (c *Consensus) Await(ctx context.Context, f raft.Future) error {
	done := make(chan error, 1)
	if !c.Spawn(func() { done <- c.ask(func() raft.Future { return f }) }) {
		return errdefs.ErrClosed
	}
	select {
	case err := <-done:
		return c.Explain(err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Explain returns the store's error for an error of Raft's.
func (c *Consensus) Explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrRaftShutdown):
		return errdefs.ErrClosed
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: %w", errdefs.ErrNotLeader, err)
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrAbortedByRestore):
		if r := c.Refused(); r != nil {
			return r
		}
		return fmt.Errorf("%w: %w", errdefs.ErrNoLeader, err)
	case errors.Is(err, raft.ErrEnqueueTimeout):
		if r := c.Refused(); r != nil {
			return r
		}
		return fmt.Errorf("%w: the log did not take the entry within %v", errdefs.ErrNoLeader, enqueueTimeout)
	}
	return err
}

// closePatience bounds how long Close waits for Raft's answers before it shuts Raft down.
const closePatience = 2 * time.Second

// awaitAnswers waits until Raft owes no answer, for at most d.
func (c *Consensus) awaitAnswers(d time.Duration) {
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

// Close ends Raft, waits for every task and closes the transport and the log.
func (c *Consensus) Close() error {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	close(c.closed)
	c.stop()
	c.awaitAnswers(closePatience)
	if c.cfg.Log != nil {
		c.cfg.Log.Stop()
	}
	err := c.Raft().Shutdown().Error()
	close(c.ended)
	err = errors.Join(err, c.heartbeats.Close())
	c.tasks.Wait()
	if c.cfg.Log != nil {
		err = errors.Join(err, c.cfg.Log.Close())
	}
	return err
}
