package raftstore

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// links are the leader's own messages to the other servers, beside Raft's: both
// are AppendEntries without entries, which a leader may send at any time.
//
// One asks whether the other still follows, for reads. The other tells how far
// the log is committed: Raft tells with the next entry or after CommitTimeout,
// and a peer that has forwarded a write, or serves a watch, waits for just that.
type links struct {
	mu    sync.Mutex
	byID  map[raft.ServerID]*link
	terms uint64 // the last term entered was called with
}

// link is the way to one server. At most one message of each kind is under way.
type link struct {
	id raft.ServerID

	mu         sync.Mutex
	rounds     []*round // wait for the next question
	asking     bool
	index      uint64 // to be told, 0 when the other knows
	term       uint64 // of that entry
	telling    bool
	leaderTerm uint64
}

// round is one confirmation of leadership.
type round struct {
	term uint64

	mu      sync.Mutex
	acks    int
	need    int
	deposed bool
	over    bool
	decided chan struct{}
}

func (l *links) to(id raft.ServerID) *link {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID == nil {
		l.byID = make(map[raft.ServerID]*link)
	}
	k := l.byID[id]
	if k == nil {
		k = &link{id: id}
		l.byID[id] = k
	}
	return k
}

// entered notes the term of the last applied entry and reports a new one.
func (l *links) entered(number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	fresh := number > l.terms
	l.terms = max(l.terms, number)
	return fresh
}

// vote counts an answer: the term the other knows.
func (r *round) vote(theirs uint64) {
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

func (r *round) isOver() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over
}

// confirm asks the other end for r, with the next question that is sent.
func (k *link) confirm(c *consensus, r *round) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// Those that others have decided need no answer of this one.
	live := k.rounds[:0]
	for _, old := range k.rounds {
		if !old.isOver() && old.term == r.term {
			live = append(live, old)
		}
	}
	clear(k.rounds[len(live):])
	k.rounds = append(live, r)
	if !k.asking {
		k.asking = c.spawn(func() { k.ask(c) })
	}
}

// ask sends questions as long as there are rounds that wait for one.
func (k *link) ask(c *consensus) {
	for {
		k.mu.Lock()
		rounds := k.rounds
		k.rounds = nil
		if len(rounds) == 0 {
			k.asking = false
			k.mu.Unlock()
			return
		}
		k.mu.Unlock()
		req := c.message(rounds[len(rounds)-1].term)
		var resp raft.AppendEntriesResponse
		err := c.trans.AppendEntries(k.id, raft.ServerAddress(k.id), req, &resp)
		if err != nil {
			continue
		}
		for _, r := range rounds {
			if r.term == req.Term {
				r.vote(resp.Term)
			}
		}
	}
}

// spread tells the other servers that the log is committed up to index.
func (c *consensus) spread(index, number uint64) {
	t := c.who()
	if !t.here {
		return
	}
	for _, s := range c.raft.GetConfiguration().Configuration().Servers {
		if string(s.ID) != c.id {
			c.links.to(s.ID).tell(c, index, number, t.number)
		}
	}
}

func (k *link) tell(c *consensus, index, number, leaderTerm uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.index, k.term, k.leaderTerm = index, number, leaderTerm
	if !k.telling {
		k.telling = c.spawn(func() { k.bring(c) })
	}
}

// How soon the other is told again that did not have the entry yet, first and at
// last, and how often: about until Raft tells.
const (
	firstRetell, lastRetell = time.Millisecond, 16 * time.Millisecond
	retells                 = 40
)

// bring tells as long as there is news. A commit may overtake its entry on the way
// to a server that is slower than a majority, which then refuses.
func (k *link) bring(c *consensus) {
	wait, tries := firstRetell, 0
	for {
		k.mu.Lock()
		index, number, leaderTerm := k.index, k.term, k.leaderTerm
		k.index = 0
		if index == 0 {
			k.telling = false
			k.mu.Unlock()
			return
		}
		k.mu.Unlock()
		req := c.message(leaderTerm)
		// The other matches this entry or refuses: it never commits another.
		req.PrevLogEntry, req.PrevLogTerm, req.LeaderCommitIndex = index, number, index
		var resp raft.AppendEntriesResponse
		err := c.trans.AppendEntries(k.id, raft.ServerAddress(k.id), req, &resp)
		if err != nil || resp.Success || resp.Term != leaderTerm || tries == retells || !c.rest(wait) {
			wait, tries = firstRetell, 0
			continue
		}
		wait, tries = min(2*wait, lastRetell), tries+1
		k.mu.Lock()
		if k.index == 0 {
			k.index, k.term, k.leaderTerm = index, number, leaderTerm
		} else {
			tries = 0 // there is news
		}
		k.mu.Unlock()
	}
}

// rest waits; false when Raft ends meanwhile.
func (c *consensus) rest(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.closed:
		return false
	}
}

// message is an AppendEntries without entries, from the leader of a term.
func (c *consensus) message(number uint64) *raft.AppendEntriesRequest {
	self := c.trans.EncodePeer(raft.ServerID(c.id), c.trans.LocalAddr())
	return &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(c.id), Addr: self},
		Term:      number,
		Leader:    self,
	}
}
