package raftfix

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/errdefs"
)

// Confirmation asks the voters whether they still follow this server.
//
// Upstream: VerifyLeader counts the next answer of each follower, also when it belongs to a heartbeat that was sent before the
// call.
//
// Consequence: a leader that was frozen and replaced meanwhile believes answers from before, and serves a stale read.
//
// A Confirmation counts answers to messages that were sent after Confirm was called. Calls that come while a message to a
// server is under way share the next one. TestALeaderCutOffServesNoReadsAndLosesNoWrites and
// TestALeaderThatWasReplacedAnswersNobody show it.
type Confirmation struct {
	server *Server

	mu   sync.Mutex
	asks map[raft.ServerID]*voterQueue
}

// NewConfirmation returns the Confirmation of a server.
func NewConfirmation(s *Server) *Confirmation {
	return &Confirmation{server: s, asks: make(map[raft.ServerID]*voterQueue)}
}

// confirmRound is one call of Confirm.
type confirmRound struct {
	term uint64
	need int // answers for a majority

	mu      sync.Mutex
	acks    int
	deposed bool // an answer named a later term
	over    bool
	decided chan struct{}
}

// voterQueue holds the rounds that wait for an answer of one voter. At most one message to it is under way.
type voterQueue struct {
	id raft.ServerID

	mu     sync.Mutex
	rounds []*confirmRound // for the next message
	asking bool
}

// Confirm returns nil when a majority has answered, to messages sent after the call, that it knows no term later than the given
// one: ErrNotLeader when a later term has begun, ErrNoLeader when ctx ends first.
func (c *Confirmation) Confirm(ctx context.Context, term uint64) error {
	r := &confirmRound{term: term, decided: make(chan struct{})}
	voters := c.server.Voters("")
	r.need = len(voters)/2 + 1
	others := slices.DeleteFunc(slices.Clone(voters), func(id string) bool { return id == c.server.ID })
	r.acks = len(voters) - len(others)
	if r.acks >= r.need {
		return nil
	}
	for _, id := range others {
		c.queue(raft.ServerID(id)).add(c.server, r)
	}
	select {
	case <-r.decided:
		if r.deposed {
			return fmt.Errorf("%w: a later term has begun", errdefs.ErrNotLeader)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: no quorum answers", errdefs.ErrNoLeader)
	}
}

func (c *Confirmation) queue(id raft.ServerID) *voterQueue {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.asks[id]
	if q == nil {
		q = &voterQueue{id: id}
		c.asks[id] = q
	}
	return q
}

// count counts an answer that names the term its sender knows.
func (r *confirmRound) count(theirs uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.over:
		return
	case theirs > r.term:
		r.deposed = true
	default:
		r.acks++
	}
	if r.deposed || r.acks >= r.need {
		r.over = true
		close(r.decided)
	}
}

func (r *confirmRound) isOver() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over
}

// add lets r wait for the answer to the next message, and drops rounds that need this voter's answer no more.
func (q *voterQueue) add(s *Server, r *confirmRound) {
	q.mu.Lock()
	defer q.mu.Unlock()
	live := q.rounds[:0]
	for _, old := range q.rounds {
		if !old.isOver() && old.term == r.term {
			live = append(live, old)
		}
	}
	clear(q.rounds[len(live):])
	q.rounds = append(live, r)
	if !q.asking {
		q.asking = s.Spawn(func() { q.ask(s) })
	}
}

// ask sends messages as long as rounds wait for an answer.
func (q *voterQueue) ask(s *Server) {
	for {
		q.mu.Lock()
		rounds := q.rounds
		q.rounds = nil
		if len(rounds) == 0 {
			q.asking = false
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		req := s.emptyAppend(rounds[len(rounds)-1].term)
		var resp raft.AppendEntriesResponse
		if err := s.Transport.AppendEntries(q.id, raft.ServerAddress(q.id), req, &resp); err != nil {
			continue
		}
		for _, r := range rounds {
			if r.term == req.Term {
				r.count(resp.Term)
			}
		}
	}
}
