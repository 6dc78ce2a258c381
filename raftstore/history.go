package raftstore

import (
	"fmt"
	"sort"
)

// markEvery is the number of events between two kept trees. Reading at an older
// revision replays at most half of it.
const markEvery = 4096

// mark is the tree as it was at rev.
type mark struct {
	rev  int64
	tree *tree
}

// history is what happened since the compact revision: the events in order and,
// every so often, the tree as it was. A copy of the struct stays valid and
// unchanged while the original grows, because both slices are only ever
// appended to or replaced, never written in place.
//
//	compact revision                                    newest
//	      ▼                                               ▼
//	   mark[0] ─ events ─ mark[1] ─ events ─ mark[2] ─ events ─ live tree
type history struct {
	events []Event
	marks  []mark // at least one; marks[0].rev is the compact revision
	bytes  int64  // what only the history keeps in memory, roughly
	tail   int    // events since the last mark
}

func eventCost(e *Event) int64 {
	n := 64 + e.Prev.size()
	if e.Type == EventDelete {
		n += e.KV.size()
	}
	return n
}

func (h *history) compacted() int64 { return h.marks[0].rev }

func (h *history) append(e Event) {
	h.events = append(h.events, e)
	h.bytes += eventCost(&e)
	h.tail++
}

// after is the index of the first event later than rev.
func (h *history) after(rev int64) int { return eventsAfter(h.events, rev) }

func eventsAfter(events []Event, rev int64) int {
	return sort.Search(len(events), func(i int) bool { return events[i].KV.ModRevision > rev })
}

// remember keeps v, the newest state, as a mark when enough happened since the
// last one.
func (h *history) remember(v *View) {
	if h.tail >= markEvery {
		h.marks = append(h.marks, mark{rev: v.rev, tree: v.tree})
		h.tail = 0
	}
}

// viewAt rebuilds the state at rev from the nearest tree that is kept, live
// being the newest.
func (h *history) viewAt(rev int64, live *View) (*View, error) {
	switch {
	case rev > live.rev:
		return nil, fmt.Errorf("%w: %d, newest is %d", ErrFutureRevision, rev, live.rev)
	case rev == live.rev:
		return live, nil
	case rev < h.compacted():
		return nil, fmt.Errorf("%w: %d, oldest is %d", ErrCompacted, rev, h.compacted())
	}
	// marks[i-1].rev <= rev < marks[i].rev, the live tree standing for the
	// mark after the last.
	i := sort.Search(len(h.marks), func(i int) bool { return h.marks[i].rev > rev })
	below, above := h.marks[i-1], mark{rev: live.rev, tree: live.tree}
	if i < len(h.marks) {
		above = h.marks[i]
	}
	from, at, to := h.after(below.rev), h.after(rev), h.after(above.rev)
	if at-from <= to-at {
		t := copyTree(below.tree)
		for j := from; j < at; j++ {
			redo(t, &h.events[j])
		}
		return &View{tree: t, rev: rev}, nil
	}
	t := copyTree(above.tree)
	for j := to - 1; j >= at; j-- {
		undo(t, &h.events[j])
	}
	return &View{tree: t, rev: rev}, nil
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

// compact forgets what happened up to rev; the state at rev stays readable.
func (h *history) compact(rev int64, live *View) error {
	if rev <= h.compacted() {
		return fmt.Errorf("%w: %d, oldest is %d", ErrCompacted, rev, h.compacted())
	}
	base, err := h.viewAt(rev, live)
	if err != nil {
		return err
	}
	n := h.after(rev)
	for i := range h.events[:n] {
		h.bytes -= eventCost(&h.events[i])
	}
	// A copy lets go of the versions that only the dropped events held.
	h.events = append(make([]Event, 0, len(h.events)-n+64), h.events[n:]...)
	marks := []mark{{rev: rev, tree: base.tree}}
	for _, m := range h.marks {
		if m.rev > rev {
			marks = append(marks, m)
		}
	}
	h.marks = marks
	h.tail = len(h.events) - h.after(marks[len(marks)-1].rev)
	return nil
}
