package raftstore

import (
	"fmt"
	"sync"
	"time"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

// outbox holds what this peer has proposed and not yet seen applied here. It
// decides what may be proposed, again or for the first time, and never causes an
// effect twice:
//
//   - An attempt is bound to a term. The state ignores it in any other.
//   - Within a term the leader takes each sequence number once (see ledger).
//   - An attempt of a later term waits until this peer has applied something of
//     a term later than the last attempt's: by then that attempt had its effect
//     or never will.
type outbox struct {
	mu     sync.Mutex
	last   uint64 // newest sequence number
	oldest uint64 // lowest that may still be waited for
	waits  map[uint64]*wait
	ready  []*wait // to be proposed, in order
}

// unitOutbox is what a panic in the outbox or the ledger is reported as. Their callers are requests too, whose panics are
// contained: but a half-made change here could give a command its effect twice, so the process ends.
const unitOutbox = "raftstore/outbox"

// wait is one command and who waits for it.
type wait struct {
	seq     uint64
	command []byte
	only    uint64 // the one term it makes sense in, 0 for any
	since   time.Time
	done    chan outcome // buffered: the sender never waits

	// Guarded by outbox.mu.
	term   uint64 // of the newest attempt, 0 before the first
	sent   time.Time
	queued bool
}

// outcome is what a proposer gets.
type outcome struct {
	applied mvcc.Applied
	err     error
}

func newOutbox() *outbox { return &outbox{oldest: 1, waits: make(map[uint64]*wait)} }

// put queues a command, to be proposed in any term, or in one only.
func (o *outbox) put(command []byte, only uint64) *wait {
	defer fault.Fatal(unitOutbox)
	w := &wait{command: command, only: only, since: time.Now(), done: make(chan outcome, 1), queued: true}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last++
	w.seq = o.last
	o.waits[w.seq] = w
	o.ready = append(o.ready, w)
	return w
}

// drop forgets a command its proposer gave up on. It may have its effect yet.
func (o *outbox) drop(w *wait) {
	defer fault.Fatal(unitOutbox)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.remove(w)
}

func (o *outbox) remove(w *wait) {
	delete(o.waits, w.seq)
	for o.oldest <= o.last && o.waits[o.oldest] == nil {
		o.oldest++
	}
}

// take returns what may be proposed now to the leader of term, marked as sent,
// and the oldest sequence number still waited for. applied is the term of the
// last entry this peer has applied, after settle heard of everything up to it.
func (o *outbox) take(term, applied uint64) ([]*wait, uint64) {
	defer fault.Fatal(unitOutbox)
	o.mu.Lock()
	defer o.mu.Unlock()
	var out, back []*wait
	size, now := 0, time.Now()
	for i, w := range o.ready {
		if len(out) == maxBatchCommands || size >= maxBatchBytes {
			back = append(back, o.ready[i:]...)
			break
		}
		switch {
		case o.waits[w.seq] != w: // given up
		case w.only != 0 && w.only != term:
			w.done <- outcome{err: fmt.Errorf("%w in term %d any more", ErrNotLeader, w.only)}
			o.remove(w)
		case w.term == 0, w.term == term, w.term < applied:
			w.term, w.sent, w.queued = term, now, false
			out = append(out, w)
			size += len(w.command)
		default:
			back = append(back, w)
		}
	}
	o.ready = back
	return out, o.oldest
}

// settle passes on what became of commands, and queues again what came too
// late. It reports whether there is something to propose.
func (o *outbox) settle(fates []fate) bool {
	defer fault.Fatal(unitOutbox)
	o.mu.Lock()
	defer o.mu.Unlock()
	again := false
	for i := range fates {
		f := &fates[i]
		w := o.waits[f.seq]
		switch {
		case w == nil:
		case !f.late:
			w.done <- outcome{applied: f.Applied}
			o.remove(w)
		case f.term == w.term:
			// This very attempt had no effect: the next need not wait.
			w.term = 0
			again = o.queue(w) || again
		}
	}
	return again
}

// again queues what an attempt in term did not bring into the log, as far as is
// known.
func (o *outbox) again(ws []*wait, term uint64) {
	defer fault.Fatal(unitOutbox)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range ws {
		if o.waits[w.seq] == w && w.term == term {
			o.queue(w)
		}
	}
}

func (o *outbox) queue(w *wait) bool {
	if w.queued {
		return false
	}
	w.queued = true
	o.ready = append(o.ready, w)
	return true
}

// overdue queues again what has had no answer since before, and what was sent
// to the leader of another term.
func (o *outbox) overdue(before time.Time, term uint64) {
	defer fault.Fatal(unitOutbox)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.waits {
		if w.term != 0 && (w.sent.Before(before) || w.term != term) {
			o.queue(w)
		}
	}
}

// fail gives up on everything put before, or everything when before is zero.
func (o *outbox) fail(before time.Time, err error) {
	defer fault.Fatal(unitOutbox)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.waits {
		if before.IsZero() || w.since.Before(before) {
			w.done <- outcome{err: err}
			o.remove(w)
		}
	}
}

// lost gives up on everything that was proposed: a snapshot took the place of
// the entries that said what became of it. To propose it again could give it its
// effect twice.
func (o *outbox) lost() {
	defer fault.Fatal(unitOutbox)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.waits {
		if w.term != 0 {
			w.done <- outcome{err: tooLong("a snapshot took the place of the log")}
			o.remove(w)
		}
	}
}

func (o *outbox) empty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.waits) == 0
}

// ledger is what the leader of a term has taken into its log: each sequence
// number of each origin once.
type ledger struct {
	mu      sync.Mutex
	term    uint64
	origins map[uint64]*taken
}

type taken struct {
	oldest uint64 // below it everything is finished
	seqs   map[uint64]struct{}
}

// pruneAt is how many numbers of an origin are kept before those that are
// finished are looked for.
const pruneAt = 4 * maxBatchCommands

// enter returns the items that were not taken in this term before, and counts
// them as taken.
func (l *ledger) enter(b *batch, oldest uint64) []batchItem {
	defer fault.Fatal(unitOutbox)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term != b.term {
		l.term, l.origins = b.term, make(map[uint64]*taken)
	}
	t := l.origins[b.origin]
	if t == nil {
		t = &taken{seqs: make(map[uint64]struct{})}
		l.origins[b.origin] = t
	}
	t.oldest = max(t.oldest, oldest)
	if len(t.seqs) >= pruneAt {
		for s := range t.seqs {
			if s < t.oldest {
				delete(t.seqs, s)
			}
		}
	}
	fresh := make([]batchItem, 0, len(b.items))
	for _, it := range b.items {
		if _, seen := t.seqs[it.seq]; !seen && it.seq >= t.oldest {
			t.seqs[it.seq] = struct{}{}
			fresh = append(fresh, it)
		}
	}
	return fresh
}

// strike forgets items that did not get into the log after all.
func (l *ledger) strike(b *batch) {
	defer fault.Fatal(unitOutbox)
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.origins[b.origin]; t != nil && l.term == b.term {
		for _, it := range b.items {
			delete(t.seqs, it.seq)
		}
	}
}

// tooLong is the error of a command nobody answered for.
func tooLong(what string) error {
	return fmt.Errorf("%w: %s; the write may or may not have happened", ErrNoLeader, what)
}
