package history

import (
	"errors"
	"fmt"
)

// faults collects faults, up to as many as a person reads.
type faults struct {
	list []error
	more int
}

const maxFaults = 20

func (f *faults) add(format string, args ...any) {
	if len(f.list) >= maxFaults {
		f.more++
		return
	}
	f.list = append(f.list, fmt.Errorf(format, args...))
}

func (f *faults) err() error {
	if f.more > 0 {
		return errors.Join(append(f.list, fmt.Errorf("and %d more", f.more))...)
	}
	return errors.Join(f.list...)
}

// checkWatchers checks that every watcher received every event once and in order. It returns the events up to End.
func checkWatchers(h *History, f *faults) []Event {
	var reference []Event
	for i := range h.Watchers {
		w := &h.Watchers[i]
		events := checkOrder(w, h.End, f)
		if i == 0 {
			reference = events
			continue
		}
		first := h.Watchers[0].Name
		for j := range min(len(events), len(reference)) {
			if !same(&events[j], &reference[j]) {
				f.add("watcher %s: event %d is %s, watcher %s saw %s there", w.Name, j, describe(&events[j]), first, describe(&reference[j]))
				break
			}
		}
		if len(events) != len(reference) {
			f.add("watcher %s saw %d events up to revision %d, watcher %s saw %d", w.Name, len(events), h.End, first, len(reference))
		}
	}
	return reference
}

// checkOrder checks one watcher and returns its events up to end.
func checkOrder(w *Watcher, end int64, f *faults) []Event {
	var events []Event
	last, progress := int64(0), int64(0)
	keys := map[string]bool{} // of the last revision
	for i := range w.Events {
		e := &w.Events[i]
		if e.Progress {
			progress = max(progress, e.Revision)
			continue
		}
		if e.Revision > end {
			break
		}
		switch {
		case e.Revision < last:
			f.add("watcher %s: %s came after revision %d", w.Name, describe(e), last)
		case e.Revision == last && keys[e.KV.Key]:
			f.add("watcher %s: %s came twice", w.Name, describe(e))
		case e.Revision <= progress:
			f.add("watcher %s: %s came after the promise that everything up to %d had come", w.Name, describe(e), progress)
		}
		if e.Revision != last {
			clear(keys)
		}
		keys[e.KV.Key] = true
		last = max(last, e.Revision)
		events = append(events, *e)
	}
	if last < end {
		f.add("watcher %s saw nothing after revision %d, the last one is %d", w.Name, last, end)
	}
	return events
}

func same(a, b *Event) bool {
	return a.Revision == b.Revision && a.Delete == b.Delete && a.KV == b.KV && (a.Prev == nil) == (b.Prev == nil) && (a.Prev == nil || *a.Prev == *b.Prev)
}

func describe(e *Event) string {
	if e.Delete {
		return fmt.Sprintf("%d: %s deleted", e.Revision, e.KV.Key)
	}
	return fmt.Sprintf("%d: %s=%s", e.Revision, e.KV.Key, e.KV.Value)
}
