package history

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// simulate returns the history of a correct store with several clients, whose operations overlap. Some answers are
// lost; some of those operations took effect.
func simulate(seed uint64, operations int) *History {
	rng := rand.New(rand.NewPCG(seed, 1))
	h := &History{}
	s := &simulated{kvs: map[string]KV{}}
	clock := make([]int64, 6) // time at which each client is free
	now := int64(1000)
	for n := range operations {
		client := rng.IntN(len(clock))
		now += 10 + rng.Int64N(50) // the time at which it takes effect
		o := randomOp(rng, s, fmt.Sprintf("v%d", n))
		o.Client, o.Call = client, max(clock[client]+1, now-rng.Int64N(200))
		lost := rng.IntN(12) == 0
		if !lost || rng.IntN(2) == 0 {
			s.apply(&o, now)
		}
		if lost {
			o.Fault, o.Revision, o.Succeeded, o.Changed, o.KVs = "timeout", 0, false, false, nil
			clock[client] = now + 300
		} else {
			o.Return = now + rng.Int64N(200)
			clock[client] = o.Return
		}
		if o.Call > now { // the client was busy: the operation takes effect later, alone
			o.Call = now
		}
		h.Ops = append(h.Ops, o)
	}
	last := Op{Writes: []Write{{Key: "end", Value: "end"}}, Call: now + 1000, Return: now + 1001}
	s.apply(&last, now+1000)
	h.Ops, h.End = append(h.Ops, last), last.Revision
	for _, name := range []string{"a", "b", "c"} {
		h.Watchers = append(h.Watchers, Watcher{Name: name, Events: slices.Clone(s.events)})
	}
	return h
}

// simulated is a minimal store.
type simulated struct {
	revision int64
	kvs      map[string]KV
	events   []Event
}

func randomOp(rng *rand.Rand, s *simulated, value string) Op {
	key := fmt.Sprintf("key/%d", rng.IntN(3))
	set := func() string { return fmt.Sprintf("%s%d", SetPrefix, rng.IntN(3)) }
	switch rng.IntN(8) {
	case 0, 1:
		return Op{Read: &Read{Key: key}}
	case 2:
		return Op{Read: &Read{Key: SetPrefix, Prefix: true}}
	case 3, 4:
		return Op{Writes: []Write{{Key: key, Value: value}}}
	case 5:
		return Op{Writes: []Write{{Key: key, Delete: true}}}
	case 6:
		k := set()
		return Op{Compares: []Compare{{Key: k, Mod: s.kvs[k].Mod}}, Writes: []Write{{Key: k, Value: value}}, Read: &Read{Key: SetPrefix, Prefix: true}}
	}
	return Op{Writes: []Write{{Key: SetPrefix + "0", Value: value + "a"}, {Key: SetPrefix + "1", Value: value + "b"}}}
}

func (s *simulated) apply(o *Op, now int64) {
	o.Succeeded = true
	for _, c := range o.Compares {
		o.Succeeded = o.Succeeded && s.kvs[c.Key].Mod == c.Mod
	}
	next := s.revision + 1
	for _, w := range o.Writes {
		prev, there := s.kvs[w.Key]
		if !o.Succeeded || w.Delete && !there {
			continue
		}
		o.Changed = true
		e := Event{Revision: next, Seen: now, Delete: w.Delete, KV: KV{Key: w.Key, Mod: next}}
		if there {
			e.Prev = &prev
		}
		delete(s.kvs, w.Key)
		if !w.Delete {
			e.KV = KV{Key: w.Key, Value: w.Value, Create: next, Mod: next, Version: 1}
			if there {
				e.KV.Create, e.KV.Version = prev.Create, prev.Version+1
			}
			s.kvs[w.Key] = e.KV
		}
		s.events = append(s.events, e)
		s.revision = next
	}
	o.Revision = s.revision
	if o.Read != nil {
		for key, kv := range s.kvs {
			if o.Read.covers(key) {
				o.KVs = append(o.KVs, kv)
			}
		}
	}
}

func TestCorrectHistoriesPass(t *testing.T) {
	for seed := range uint64(30) {
		h := simulate(seed, 400)
		if err := Check(h, 10*time.Second, ""); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// TestResolvedHistoriesAreJudgedAlike: the watchers' events about operations of unknown outcome help the search and
// change no verdict.
func TestResolvedHistoriesAreJudgedAlike(t *testing.T) {
	for seed := range uint64(20) {
		h := simulate(seed, 400)
		judge := func() (all bool) {
			all = true
			for _, ops := range parts(h) {
				m := &model{keys: keysOf(ops)}
				all = all && porcupine.CheckOperationsTimeout(m.porcupine(), operations(resolve(h, ops)), 10*time.Second) == porcupine.Ok
			}
			return all
		}
		if !judge() {
			t.Errorf("seed %d: a correct history is refused", seed)
		}
		i := find(t, h, isGet)
		h.Ops[i].KVs[0].Value = "never"
		if judge() {
			t.Errorf("seed %d: a wrong history passes", seed)
		}
	}
}

func TestSavedHistoryIsTheSame(t *testing.T) {
	h := simulate(1, 50)
	path := filepath.Join(t.TempDir(), "history.json")
	if err := h.Save(path); err != nil {
		t.Fatal(err)
	}
	again, err := Load(path)
	if err != nil || len(again.Ops) != len(h.Ops) || len(again.Watchers[2].Events) != len(h.Watchers[2].Events) {
		t.Fatalf("%v", err)
	}
	if err := Check(again, 10*time.Second, ""); err != nil {
		t.Error(err)
	}
}

// find returns the index of the first operation, from the middle on, for which holds is true.
func find(t *testing.T, h *History, holds func(*Op) bool) int {
	t.Helper()
	for i := len(h.Ops) / 2; i < len(h.Ops); i++ {
		if holds(&h.Ops[i]) {
			return i
		}
	}
	t.Fatal("the history holds no such operation")
	return 0
}

func isPut(o *Op) bool {
	return o.wrote() && len(o.Compares) == 0 && len(o.Writes) == 1 && !o.Writes[0].Delete && strings.HasPrefix(o.Writes[0].Key, "key/")
}

func isGet(o *Op) bool { return o.known() && len(o.Writes) == 0 && len(o.KVs) == 1 && !o.Read.Prefix }

// without removes an operation's effect from every watcher's events.
func without(h *History, revision int64) {
	for i := range h.Watchers {
		h.Watchers[i].Events = slices.DeleteFunc(h.Watchers[i].Events, func(e Event) bool { return e.Revision == revision })
	}
}

// TestWrongHistoriesAreRefused plants each fault that a store may have; the named checkers must find it.
func TestWrongHistoriesAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		plant           func(t *testing.T, h *History)
		replay, searchs bool
	}{
		"an acknowledged write is lost": {func(t *testing.T, h *History) {
			without(h, h.Ops[find(t, h, isPut)].Revision)
		}, true, false},
		"a read is stale": {func(t *testing.T, h *History) {
			i := find(t, h, isPut)
			read := Op{Client: 9, Read: &Read{Key: h.Ops[i].Writes[0].Key}, Call: h.Ops[i].Return + 1, Return: h.Ops[i].Return + 2, Revision: h.Ops[i].Revision - 1}
			s := rebuild(h.Watchers[0].Events, &faults{})
			if kv := s.at(read.Read.Key, read.Revision); kv != nil {
				read.KVs = []KV{*kv}
			}
			h.Ops = append(h.Ops, read)
		}, true, true},
		"a read tells a value that was never there": {func(t *testing.T, h *History) {
			i := find(t, h, isGet)
			h.Ops[i].KVs[0].Value = "never"
		}, true, true},
		"a read tells a wrong mod revision": {func(t *testing.T, h *History) {
			i := find(t, h, isGet)
			h.Ops[i].KVs[0].Mod--
		}, true, true},
		"a read tells a wrong version": {func(t *testing.T, h *History) {
			i := find(t, h, isGet)
			h.Ops[i].KVs[0].Version++
		}, true, false},
		"a list is torn": {func(t *testing.T, h *History) {
			i := find(t, h, func(o *Op) bool { return o.known() && o.Read != nil && o.Read.Prefix && len(o.KVs) > 1 })
			h.Ops[i].KVs = h.Ops[i].KVs[1:]
		}, true, true},
		"a condition that did not hold": {func(t *testing.T, h *History) {
			i := find(t, h, func(o *Op) bool { return o.wrote() && len(o.Compares) > 0 })
			h.Ops[i].Compares[0].Mod += 1000
		}, true, true},
		"a write is acknowledged as refused": {func(t *testing.T, h *History) {
			i := find(t, h, func(o *Op) bool { return o.wrote() && len(o.Compares) > 0 })
			h.Ops[i].Succeeded, h.Ops[i].Changed = false, false
		}, true, true},
		"a write happens twice": {func(t *testing.T, h *History) {
			i := find(t, h, isPut)
			o := h.Ops[i]
			for w := range h.Watchers {
				events := h.Watchers[w].Events
				last := &events[len(events)-1] // the last write becomes the second one of the first revision
				last.KV.Value, last.KV.Key = o.Writes[0].Value, o.Writes[0].Key
				s := rebuild(events[:len(events)-1], &faults{})
				last.Prev = s.at(last.KV.Key, last.Revision)
			}
		}, true, false},
		"an event comes twice": {func(t *testing.T, h *History) {
			e := h.Watchers[1].Events
			h.Watchers[1].Events = slices.Insert(e, 20, e[20])
		}, true, false},
		"an event is missing": {func(t *testing.T, h *History) {
			h.Watchers[1].Events = slices.Delete(h.Watchers[1].Events, 20, 21)
		}, true, false},
		"events change places": {func(t *testing.T, h *History) {
			e := h.Watchers[2].Events
			i := slices.IndexFunc(e, func(e Event) bool { return e.Revision > 20 })
			e[i], e[i-1] = e[i-1], e[i]
		}, true, false},
		"watchers stop early": {func(t *testing.T, h *History) {
			h.Watchers[2].Events = h.Watchers[2].Events[:30]
		}, true, false},
		"a promise of progress is broken": {func(t *testing.T, h *History) {
			e := h.Watchers[0].Events
			h.Watchers[0].Events = slices.Insert(e, 20, Event{Progress: true, Revision: e[20].Revision})
		}, true, false},
		"a revision lies before one that was answered": {func(t *testing.T, h *History) {
			i := find(t, h, isPut)
			h.Ops = append(h.Ops, Op{Client: 9, Read: &Read{Key: "key/none"}, Call: h.Ops[i].Call - 2, Return: h.Ops[i].Call - 1, Revision: h.Ops[i].Revision})
		}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(5) {
				h := simulate(seed, 300)
				test.plant(t, h)
				if err := Replay(h); (err != nil) != test.replay {
					t.Errorf("seed %d: replay says %v", seed, err)
				}
				if err := Linearizable(h, 10*time.Second, ""); (err != nil) != test.searchs {
					t.Errorf("seed %d: the search says %v", seed, err)
				}
			}
		})
	}
}

// TestPicturesOfFaults: a refused history is also drawn.
func TestPicturesOfFaults(t *testing.T) {
	h := simulate(3, 100)
	i := find(t, h, isGet)
	h.Ops[i].KVs[0].Value = "never"
	dir := t.TempDir()
	if err := Linearizable(h, 10*time.Second, dir); err == nil {
		t.Fatal("not refused")
	}
	if pictures, _ := filepath.Glob(dir + "/*.html"); len(pictures) != 1 {
		t.Errorf("pictures: %v", pictures)
	}
}

// TestLeasesEndInTime: a key that disappears before its lease may end, and one that stays, are refused.
func TestLeasesEndInTime(t *testing.T) {
	make := func(until int64, gone bool) *History {
		put := KV{Key: LeasePrefix + "a", Value: "x", Create: 1, Mod: 1, Version: 1, Lease: 7}
		events := []Event{{Revision: 1, Seen: 10, KV: put}}
		ops := []Op{
			{Writes: []Write{{Key: put.Key, Value: "x", Lease: 7}}, Call: 1, Return: 20, Revision: 1, Succeeded: true, Changed: true},
			{Writes: []Write{{Key: "end", Value: "e"}}, Call: 200, Return: 220, Revision: 3, Succeeded: true, Changed: true},
		}
		if gone {
			events = append(events, Event{Revision: 2, Seen: 100, Delete: true, KV: KV{Key: put.Key, Mod: 2}, Prev: &put})
		}
		events = append(events, Event{Revision: 3, Seen: 210, KV: KV{Key: "end", Value: "e", Create: 3, Mod: 3, Version: 1}})
		return &History{Ops: ops, Watchers: []Watcher{{Name: "a", Events: events}}, Leases: []Lease{{ID: 7, Until: until}}, End: 3}
	}
	if err := Replay(make(90, true)); err != nil {
		t.Error(err)
	}
	if err := Replay(make(150, true)); err == nil {
		t.Error("a lease that ended too early passed")
	}
	if err := Replay(make(90, false)); err == nil {
		t.Error("a key that outlived its lease passed")
	}
}
