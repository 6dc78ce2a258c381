package mvcc

import (
	"fmt"
	"sort"

	"github.com/balsahq/balsa/raftstore/errdefs"
)

// markEvery is the number of events between two trees that are kept. A read at an older revision replays at most half as many events.
const markEvery = 4096

// mark is the tree as it was at rev.
type mark struct {
	rev  int64
	tree *tree
}

// History is the events since the compact revision, in order, with the tree every markEvery events. A copy of the struct stays valid and
// unchanged while the original grows, because both slices are only appended to or replaced, never written in place.
//
//	compact revision                                    newest
//	      ▼                                               ▼
//	   mark[0] ─ events ─ mark[1] ─ events ─ mark[2] ─ events ─ live tree
type History struct {
	Events []Event
	marks  []mark // at least one; marks[0].rev is the compact revision
	Bytes  int64  // memory that only the history keeps, roughly
	tail   int    // events since the last mark
}

func eventCost(e *Event) int64 {
	n := 64 + e.Prev.size()
	if e.Type == EventDelete {
		n += e.KV.size()
	}
	return n
}

// Compacted returns the compact revision, the oldest that can be read.
func (h *History) Compacted() int64 { return h.marks[0].rev }

func (h *History) append(e Event) {
	h.Events = append(h.Events, e)
	h.Bytes += eventCost(&e)
	h.tail++
}

// After returns the index of the first event later than rev.
func (h *History) After(rev int64) int { return EventsAfter(h.Events, rev) }

// EventsAfter returns the index of the first of events, which are in order, that is later than rev.
func EventsAfter(events []Event, rev int64) int {
	return sort.Search(len(events), func(i int) bool { return events[i].KV.ModRevision > rev })
}

// remember keeps v, the newest state, as a mark when there are markEvery events since the last mark.
func (h *History) remember(v *View) {
	if h.tail >= markEvery {
		h.marks = append(h.marks, mark{rev: v.Rev, tree: v.tree})
		h.tail = 0
	}
}

// ViewAt rebuilds the state at rev from the nearest tree that is kept. live is the newest state.
func (h *History) ViewAt(rev int64, live *View) (*View, error) {
	switch {
	case rev > live.Rev:
		return nil, fmt.Errorf("%w: %d, newest is %d", errdefs.ErrFutureRevision, rev, live.Rev)
	case rev == live.Rev:
		return live, nil
	case rev < h.Compacted():
		return nil, fmt.Errorf("%w: %d, oldest is %d", errdefs.ErrCompacted, rev, h.Compacted())
	}
	// marks[i-1].rev <= rev < marks[i].rev, where the live tree counts as the mark after the last.
	i := sort.Search(len(h.marks), func(i int) bool { return h.marks[i].rev > rev })
	below, above := h.marks[i-1], mark{rev: live.Rev, tree: live.tree}
	if i < len(h.marks) {
		above = h.marks[i]
	}
	from, at, to := h.After(below.rev), h.After(rev), h.After(above.rev)
	if at-from <= to-at {
		t := copyTree(below.tree)
		for j := from; j < at; j++ {
			redo(t, &h.Events[j])
		}
		return &View{tree: t, Rev: rev}, nil
	}
	t := copyTree(above.tree)
	for j := to - 1; j >= at; j-- {
		undo(t, &h.Events[j])
	}
	return &View{tree: t, Rev: rev}, nil
}

func redo(t *tree, e *Event) {
	if e.Type == EventDelete {
		t.Delete(e.KV.Key)
		return
	}
	t.Set(e.KV.Key, e.KV)
}

func undo(t *tree, e *Event) {
	if e.Prev == nil {
		t.Delete(e.KV.Key)
		return
	}
	t.Set(e.KV.Key, e.Prev)
}

// compact removes the events up to rev; the state at rev stays readable.
func (h *History) compact(rev int64, live *View) error {
	if rev <= h.Compacted() {
		return fmt.Errorf("%w: %d, oldest is %d", errdefs.ErrCompacted, rev, h.Compacted())
	}
	base, err := h.ViewAt(rev, live)
	if err != nil {
		return err
	}
	n := h.After(rev)
	for i := range h.Events[:n] {
		h.Bytes -= eventCost(&h.Events[i])
	}
	// The copy frees the versions that only the removed events held.
	h.Events = append(make([]Event, 0, len(h.Events)-n+64), h.Events[n:]...)
	marks := []mark{{rev: rev, tree: base.tree}}
	for _, m := range h.marks {
		if m.rev > rev {
			marks = append(marks, m)
		}
	}
	h.marks = marks
	h.tail = len(h.Events) - h.After(marks[len(marks)-1].rev)
	return nil
}
