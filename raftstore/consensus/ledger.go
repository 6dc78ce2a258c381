package consensus

import (
	"sync"

	"github.com/balsahq/balsa/fault"
)

// ledger is which sequence numbers the leader of a term has taken into its log: each number of each origin once.
type ledger struct {
	mu      sync.Mutex
	term    uint64
	origins map[uint64]*takenSeqs
}

type takenSeqs struct {
	oldest uint64 // commands below it are finished
	seqs   map[uint64]struct{}
}

// pruneAt is how many numbers of an origin are kept before the finished ones are removed.
const pruneAt = 4 * maxEntryCommands

// enter returns the items that were not taken in this term before, and marks them as taken.
func (l *ledger) enter(e *Entry, oldest uint64) []Item {
	defer fault.Fatal(unitProposals)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term != e.Term {
		l.term, l.origins = e.Term, make(map[uint64]*takenSeqs)
	}
	t := l.origins[e.Origin]
	if t == nil {
		t = &takenSeqs{seqs: make(map[uint64]struct{})}
		l.origins[e.Origin] = t
	}
	t.oldest = max(t.oldest, oldest)
	if len(t.seqs) >= pruneAt {
		for s := range t.seqs {
			if s < t.oldest {
				delete(t.seqs, s)
			}
		}
	}
	fresh := make([]Item, 0, len(e.Items))
	for _, it := range e.Items {
		if _, seen := t.seqs[it.Seq]; !seen && it.Seq >= t.oldest {
			t.seqs[it.Seq] = struct{}{}
			fresh = append(fresh, it)
		}
	}
	return fresh
}

// strike forgets items that did not get into the log after all.
func (l *ledger) strike(e *Entry) {
	defer fault.Fatal(unitProposals)
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.origins[e.Origin]; t != nil && l.term == e.Term {
		for _, it := range e.Items {
			delete(t.seqs, it.Seq)
		}
	}
}
