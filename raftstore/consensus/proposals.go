package consensus

import (
	"fmt"
	"sync"
	"time"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore/errdefs"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

// proposals are the commands that this server has proposed and not yet seen applied here. They decide which commands may be
// proposed, again or for the first time, so that none takes effect twice:
//
//   - An attempt is bound to a term. The state ignores it in any other.
//   - Within a term the leader takes each sequence number once (see ledger).
//   - An attempt in a later term waits until this server has applied something of a term later than the last attempt's: by then
//     that attempt has had its effect or never will.
type proposals struct {
	mu     sync.Mutex
	last   uint64 // newest sequence number
	oldest uint64 // lowest sequence number that is still waited for
	bySeq  map[uint64]*proposal
	ready  []*proposal // to be sent, in order
}

// unitProposals is the unit under which a panic in proposals or the ledger is reported. Their callers include requests, whose
// panics are contained. But a half-made change here could give a command its effect twice, so the process ends.
const unitProposals = "raftstore/proposals"

// proposal is one command and its proposer.
type proposal struct {
	seq      uint64
	command  []byte
	onlyTerm uint64 // the one term in which it makes sense, 0 for any
	since    time.Time
	done     chan outcome // buffered: the sender never waits

	// Guarded by proposals.mu.
	term   uint64 // of the newest attempt, 0 before the first
	sent   time.Time
	queued bool
}

// outcome is the answer to a proposer.
type outcome struct {
	applied mvcc.Applied
	err     error
}

// Result is the effect that one of this server's own commands had. A command that came too late had none and may be proposed
// again.
type Result struct {
	Seq  uint64
	Term uint64 // of the Entry that held the command
	Late bool
	mvcc.Applied
}

func newProposals() *proposals { return &proposals{oldest: 1, bySeq: make(map[uint64]*proposal)} }

// add queues a command, to be proposed in any term, or in one only if onlyTerm is not 0.
func (o *proposals) add(command []byte, onlyTerm uint64) *proposal {
	defer fault.Fatal(unitProposals)
	p := &proposal{command: command, onlyTerm: onlyTerm, since: time.Now(), done: make(chan outcome, 1), queued: true}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last++
	p.seq = o.last
	o.bySeq[p.seq] = p
	o.ready = append(o.ready, p)
	return p
}

// drop forgets a command whose proposer gave up. It may take effect later.
func (o *proposals) drop(p *proposal) {
	defer fault.Fatal(unitProposals)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.remove(p)
}

func (o *proposals) remove(p *proposal) {
	delete(o.bySeq, p.seq)
	for o.oldest <= o.last && o.bySeq[o.oldest] == nil {
		o.oldest++
	}
}

// nextBatch returns the commands that may be proposed now to the leader of term, marked as sent, and the oldest sequence number
// that is still waited for. applied is the term of the last entry this server has applied; settle has been called for every
// entry up to it.
func (o *proposals) nextBatch(term, applied uint64) ([]*proposal, uint64) {
	defer fault.Fatal(unitProposals)
	o.mu.Lock()
	defer o.mu.Unlock()
	var out, back []*proposal
	size, now := 0, time.Now()
	for i, p := range o.ready {
		if len(out) == maxEntryCommands || size >= maxEntryBytes {
			back = append(back, o.ready[i:]...)
			break
		}
		switch {
		case o.bySeq[p.seq] != p: // its proposer gave up
		case p.onlyTerm != 0 && p.onlyTerm != term:
			p.done <- outcome{err: fmt.Errorf("%w in term %d any more", errdefs.ErrNotLeader, p.onlyTerm)}
			o.remove(p)
		case p.term == 0, p.term == term, p.term < applied:
			p.term, p.sent, p.queued = term, now, false
			out = append(out, p)
			size += len(p.command)
		default:
			back = append(back, p)
		}
	}
	o.ready = back
	return out, o.oldest
}

// settle answers the proposers of commands that were applied, and queues commands again that came too late. It reports whether
// there is something to propose.
func (o *proposals) settle(results []Result) bool {
	defer fault.Fatal(unitProposals)
	o.mu.Lock()
	defer o.mu.Unlock()
	queued := false
	for i := range results {
		r := &results[i]
		p := o.bySeq[r.Seq]
		switch {
		case p == nil:
		case !r.Late:
			CommitSeconds.Observe(time.Since(p.since).Seconds())
			p.done <- outcome{applied: r.Applied}
			o.remove(p)
		case r.Term == p.term:
			// This very attempt had no effect: the next need not wait.
			p.term = 0
			queued = o.queue(p) || queued
		}
	}
	return queued
}

// requeue queues commands again that an attempt in term did not bring into the log, as far as is known.
func (o *proposals) requeue(ps []*proposal, term uint64) {
	defer fault.Fatal(unitProposals)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range ps {
		if o.bySeq[p.seq] == p && p.term == term {
			o.queue(p)
		}
	}
}

func (o *proposals) queue(p *proposal) bool {
	if p.queued {
		return false
	}
	p.queued = true
	o.ready = append(o.ready, p)
	return true
}

// requeueOverdue queues commands again that were sent before the given time and have no answer, or that were sent in another
// term.
func (o *proposals) requeueOverdue(before time.Time, term uint64) {
	defer fault.Fatal(unitProposals)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.bySeq {
		if p.term != 0 && (p.sent.Before(before) || p.term != term) {
			o.queue(p)
		}
	}
}

// fail answers every command added before the given time, or every command when it is zero, with err.
func (o *proposals) fail(before time.Time, err error) {
	defer fault.Fatal(unitProposals)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.bySeq {
		if before.IsZero() || p.since.Before(before) {
			p.done <- outcome{err: err}
			o.remove(p)
		}
	}
}

// failSent answers every command that was sent: a snapshot took the place of the entries that told its effect. Proposing it again
// could give it its effect twice.
func (o *proposals) failSent() {
	defer fault.Fatal(unitProposals)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.bySeq {
		if p.term != 0 {
			p.done <- outcome{err: unknownOutcome("a snapshot took the place of the log")}
			o.remove(p)
		}
	}
}

func (o *proposals) empty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.bySeq) == 0
}

// unknownOutcome is the error of a command that got no answer.
func unknownOutcome(reason string) error {
	return fmt.Errorf("%w: %s; the write may or may not have happened", errdefs.ErrNoLeader, reason)
}
