package history

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
)

// store is the state at every revision, rebuilt from events.
type store struct {
	revisions []int64                // at which something changed, ascending
	keys      map[string][]versioned // each key's versions, ascending
	names     []string               // sorted
	deletions map[string][]int64     // revisions at which a key was deleted
	puts      map[string]int64       // unique value → revision
}

type versioned struct {
	revision int64
	kv       *KV // nil: absent from this revision on
}

// at returns the key at a revision, nil if it was absent.
func (s *store) at(key string, revision int64) *KV {
	past := s.keys[key]
	i := sort.Search(len(past), func(i int) bool { return past[i].revision > revision })
	if i == 0 {
		return nil
	}
	return past[i-1].kv
}

// rebuild replays events; each must follow from the ones before it.
func rebuild(events []Event, f *faults) *store {
	s := &store{keys: map[string][]versioned{}, deletions: map[string][]int64{}, puts: map[string]int64{}}
	for i := range events {
		e := &events[i]
		key := e.KV.Key
		before := s.at(key, e.Revision)
		if n := len(s.revisions); n == 0 || s.revisions[n-1] != e.Revision {
			s.revisions = append(s.revisions, e.Revision)
		}
		if (before == nil) != (e.Prev == nil) || before != nil && *before != *e.Prev {
			f.add("event %s: the value before was %s, it says %s", describe(e), show(before), show(e.Prev))
		}
		if e.Delete {
			if before == nil {
				f.add("event %s: it was not there", describe(e))
			}
			s.deletions[key] = append(s.deletions[key], e.Revision)
			s.keys[key] = append(s.keys[key], versioned{revision: e.Revision})
			continue
		}
		want := KV{Key: key, Value: e.KV.Value, Create: e.Revision, Mod: e.Revision, Version: 1, Lease: e.KV.Lease}
		if before != nil {
			want.Create, want.Version = before.Create, before.Version+1
		}
		if e.KV != want {
			f.add("event %s shows %s, want %s", describe(e), show(&e.KV), show(&want))
		}
		if at, twice := s.puts[e.KV.Value]; twice {
			f.add("the value %s was written twice, at revisions %d and %d", e.KV.Value, at, e.Revision)
		}
		s.puts[e.KV.Value] = e.Revision
		s.keys[key] = append(s.keys[key], versioned{e.Revision, &want})
	}
	for key := range s.keys {
		s.names = append(s.names, key)
	}
	slices.Sort(s.names)
	return s
}

func show(kv *KV) string {
	if kv == nil {
		return "absent"
	}
	return fmt.Sprintf("%s=%s (create %d, mod %d, version %d, lease %x)", kv.Key, kv.Value, kv.Create, kv.Mod, kv.Version, kv.Lease)
}

// Replay checks a history against the events of its watchers.
func Replay(h *History) error {
	var f faults
	events := checkWatchers(h, &f)
	if f.err() != nil {
		return f.err() // the rest would be compared with wrong events
	}
	s := rebuild(events, &f)
	owners := map[string]*Op{}  // unique value → the operation that wrote it
	deleted := map[string]int{} // deletions that happened or may have happened, by key
	for i := range h.Ops {
		o := &h.Ops[i]
		for _, w := range o.Writes {
			if !w.Delete {
				owners[w.Value] = o
			} else if !o.known() || o.wrote() {
				deleted[w.Key]++
			}
		}
		if o.known() {
			s.checkAnswer(o, &f)
		}
	}
	for value, revision := range s.puts {
		if owners[value] == nil {
			f.add("revision %d holds the value %q, which nobody wrote", revision, value)
		}
	}
	for key, at := range s.deletions {
		if !strings.HasPrefix(key, LeasePrefix) && len(at) > deleted[key] {
			f.add("%s was deleted %d times, but only %d deletions may have succeeded", key, len(at), deleted[key])
		}
	}
	checkRealTime(h, s, &f)
	checkLeases(h, events, &f)
	return f.err()
}

// checkAnswer compares one answer with the store at the answer's revision.
func (s *store) checkAnswer(o *Op, f *faults) {
	before, at := o.Revision, o.Revision
	if o.wrote() {
		before = o.Revision - 1
	}
	if o.Read != nil && o.Read.At != 0 {
		at = o.Read.At
	}
	if len(o.Compares) > 0 {
		if holds := s.holds(o.Compares, before); holds != o.Succeeded {
			f.add("client %d was told %v, but its conditions were %v: %s", o.Client, o.Succeeded, holds, o)
		}
	}
	for _, w := range o.Writes {
		s.checkWrite(o, w, f)
	}
	if o.Read == nil {
		return
	}
	var want []KV
	for _, key := range s.names {
		if o.Read.covers(key) {
			if kv := s.at(key, at); kv != nil {
				want = append(want, *kv)
			}
		}
	}
	got := slices.Clone(o.KVs)
	slices.SortFunc(got, func(a, b KV) int { return cmp.Compare(a.Key, b.Key) })
	if !slices.Equal(got, want) {
		f.add("client %d read what was not so at revision %d: %s; it was %s", o.Client, at, o, showAll(want))
	}
}

func (s *store) checkWrite(o *Op, w Write, f *faults) {
	if !o.Succeeded {
		if at, there := s.puts[w.Value]; !w.Delete && there {
			f.add("client %d was told that nothing was written, but revision %d has it: %s", o.Client, at, o)
		}
		return
	}
	kv := s.at(w.Key, o.Revision)
	switch {
	case !o.Changed && len(o.Writes) == 1 && w.Delete && kv != nil:
		f.add("client %d was told that %s is absent: %s; it was %s", o.Client, w.Key, o, show(kv))
	case o.Changed && len(o.Writes) == 1 && w.Delete && !slices.Contains(s.deletions[w.Key], o.Revision):
		f.add("acknowledged deletion is lost: %s", o)
	case w.Delete && kv != nil:
		f.add("acknowledged deletion is lost: %s; the key is %s", o, show(kv))
	case !w.Delete && (kv == nil || kv.Mod != o.Revision || kv.Value != w.Value || kv.Lease != w.Lease):
		f.add("acknowledged write is lost: %s; the key is %s", o, show(kv))
	}
}

func (s *store) holds(compares []Compare, revision int64) bool {
	for _, c := range compares {
		kv := s.at(c.Key, revision)
		switch {
		case c.ByValue && (kv == nil || kv.Value != c.Value),
			!c.ByValue && kv == nil && c.Mod != 0,
			!c.ByValue && kv != nil && kv.Mod != c.Mod:
			return false
		}
	}
	return true
}

// checkRealTime checks that an operation which ended before another began has no later revision.
func checkRealTime(h *History, s *store, f *faults) {
	type moment struct {
		at    int64
		op    *Op
		begin bool
	}
	var moments []moment
	for i := range h.Ops {
		o := &h.Ops[i]
		moments = append(moments, moment{o.Call, o, true})
		if o.known() {
			moments = append(moments, moment{o.Return, o, false})
		}
	}
	// At the same instant, beginnings come first: such operations are concurrent.
	slices.SortStableFunc(moments, func(a, b moment) int {
		if c := cmp.Compare(a.at, b.at); c != 0 || a.begin == b.begin {
			return c
		}
		if a.begin {
			return -1
		}
		return 1
	})
	floor := int64(0)
	floors := map[*Op]int64{}
	for _, m := range moments {
		if m.begin {
			floors[m.op] = floor
			continue
		}
		if m.op.linearizable() {
			if low := floors[m.op]; m.op.Revision < low || m.op.wrote() && m.op.Revision == low {
				f.add("client %d was answered from the past: revision %d had been answered before it asked: %s", m.op.Client, low, m.op)
			}
		}
		floor = max(floor, m.op.Revision)
	}
	for i := range h.Ops {
		o := &h.Ops[i]
		for _, w := range o.Writes {
			if at, there := s.puts[w.Value]; there && !o.known() && at <= floors[o] {
				f.add("client %d wrote revision %d, which had been answered before it asked: %s", o.Client, at, o)
			}
		}
	}
}

// LeasePrefix is the start of the keys that belong to leases and are deleted with them.
const LeasePrefix = "lease/"

// checkLeases checks that no lease ended before its time, and that every key of a lease is gone in the end.
func checkLeases(h *History, events []Event, f *faults) {
	until := map[int64]int64{}
	for _, l := range h.Leases {
		until[l.ID] = l.Until
	}
	there := map[string]bool{}
	for i := range events {
		e := &events[i]
		if !strings.HasPrefix(e.KV.Key, LeasePrefix) {
			continue
		}
		there[e.KV.Key] = !e.Delete
		if !e.Delete || e.Prev == nil {
			continue
		}
		if u, ok := until[e.Prev.Lease]; ok && e.Seen < u {
			f.add("%s went with its lease %d ms too early", e.KV.Key, (u-e.Seen)/1e6)
		}
	}
	for key, is := range there {
		if is {
			f.add("%s is still there; its lease has ended", key)
		}
	}
}
