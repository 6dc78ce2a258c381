package history

import (
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// SetPrefix is the start of the keys that are checked together, because they are listed and changed together. Every
// other key, except those of leases, is checked alone. The set has at most maxKeys keys.
const SetPrefix = "set/"

const maxKeys = 8

// slot is one key of the model. mod is its mod revision. If mod is negative, an operation of unknown outcome wrote the
// key, at some revision above -mod-1.
type slot struct {
	value string // "": absent
	mod   int64
}

// state is a small store; revision is the highest one that is known to be reached.
type state struct {
	revision int64
	slots    [maxKeys]slot
}

// model is the specification of a store with the given keys.
type model struct{ keys []string }

func (m *model) index(key string) int { return slices.Index(m.keys, key) }

// step reports whether the operation may come next, and returns the store after it.
func (m *model) step(s state, o *Op) (bool, state) {
	if !o.known() && o.Revision == 0 {
		return true, m.unknown(s, o)
	}
	wrote := o.Succeeded && o.Changed
	if o.Revision < s.revision || wrote && o.Revision == s.revision {
		return false, s
	}
	if len(o.Compares) > 0 {
		var holds bool
		if holds, s = m.compare(s, o); holds != o.Succeeded {
			return false, s
		}
	}
	if len(o.Writes) > 0 && o.Succeeded && m.alters(s, o) != o.Changed {
		return false, s
	}
	s.revision = o.Revision
	if wrote {
		for _, w := range o.Writes {
			s.slots[m.index(w.Key)] = written(w, o.Revision)
		}
	}
	if o.Read == nil || !o.known() {
		return true, s
	}
	found := 0
	for i, key := range m.keys {
		if !o.Read.covers(key) {
			continue
		}
		at := slices.IndexFunc(o.KVs, func(kv KV) bool { return kv.Key == key })
		if (at < 0) != (s.slots[i].value == "") {
			return false, s
		}
		if at < 0 {
			continue
		}
		found++
		kv := o.KVs[at]
		if kv.Value != s.slots[i].value || !couldBe(s.slots[i].mod, kv.Mod, o.Revision) {
			return false, s
		}
		s.slots[i].mod = kv.Mod
	}
	return found == len(o.KVs), s
}

func written(w Write, mod int64) slot {
	if w.Delete {
		return slot{}
	}
	return slot{w.Value, mod}
}

// couldBe reports whether a slot's mod revision may be the answered one.
func couldBe(mod, answered, revision int64) bool {
	return mod == answered || mod < 0 && answered > -mod-1 && answered <= revision
}

// alters reports whether the operation makes a revision.
func (m *model) alters(s state, o *Op) bool {
	return slices.ContainsFunc(o.Writes, func(w Write) bool { return !w.Delete || s.slots[m.index(w.Key)].value != "" })
}

// compare evaluates conditions. A condition may hold only for a certain revision of a write of unknown outcome. If the
// answer says that it held, the revision of that write is known.
func (m *model) compare(s state, o *Op) (bool, state) {
	for _, c := range o.Compares {
		i := m.index(c.Key)
		v := s.slots[i]
		switch {
		case c.ByValue && v.value != c.Value, !c.ByValue && v.value == "" && c.Mod != 0:
			return false, s
		case c.ByValue || v.value == "" || v.mod == c.Mod:
		case v.mod < 0 && o.Succeeded && couldBe(v.mod, c.Mod, o.Revision):
			s.slots[i].mod = c.Mod
		default:
			return false, s
		}
	}
	return true, s
}

// unknown returns the store after an operation without an answer took effect. An operation that never took effect is
// one that took effect after all others.
func (m *model) unknown(s state, o *Op) state {
	for _, c := range o.Compares {
		v := s.slots[m.index(c.Key)]
		if c.ByValue && v.value != c.Value || !c.ByValue && (v.value == "") != (c.Mod == 0) || !c.ByValue && v.mod > 0 && v.mod != c.Mod {
			return s
		}
	}
	if !m.alters(s, o) {
		return s
	}
	low := -s.revision - 1
	s.revision++
	for _, w := range o.Writes {
		s.slots[m.index(w.Key)] = written(w, low)
	}
	return s
}

var seed = maphash.MakeSeed()

func (m *model) porcupine() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return state{} },
		Step: func(s, in, _ any) (bool, any) { return m.step(s.(state), in.(*Op)) },
		Hash: func(s any) uint64 { return maphash.Comparable(seed, s.(state)) },
		DescribeOperation: func(in, _ any) string {
			return in.(*Op).String()
		},
		DescribeState: func(s any) string {
			var out strings.Builder
			st := s.(state)
			fmt.Fprintf(&out, "revision ≥ %d", st.revision)
			for i, key := range m.keys {
				if st.slots[i].value != "" {
					fmt.Fprintf(&out, ", %s=%s@%d", key, st.slots[i].value, st.slots[i].mod)
				}
			}
			return out.String()
		},
	}
}

// parts splits the operations into groups that can be checked separately.
func parts(h *History) map[string][]*Op {
	out := map[string][]*Op{}
	for i := range h.Ops {
		o := &h.Ops[i]
		if !o.linearizable() || !o.known() && len(o.Writes) == 0 {
			continue
		}
		var key string
		switch {
		case len(o.Compares) > 0:
			key = o.Compares[0].Key
		case len(o.Writes) > 0:
			key = o.Writes[0].Key
		default:
			key = o.Read.Key
		}
		switch {
		case strings.HasPrefix(key, LeasePrefix):
			continue
		case strings.HasPrefix(key, SetPrefix):
			key = SetPrefix
		}
		out[key] = append(out[key], o)
	}
	return out
}

// keysOf returns all keys that the operations name.
func keysOf(ops []*Op) []string {
	var keys []string
	add := func(key string) {
		if i, there := slices.BinarySearch(keys, key); !there {
			keys = slices.Insert(keys, i, key)
		}
	}
	for _, o := range ops {
		for _, c := range o.Compares {
			add(c.Key)
		}
		for _, w := range o.Writes {
			add(w.Key)
		}
		if o.Read != nil && !o.Read.Prefix {
			add(o.Read.Key)
		}
		for _, kv := range o.KVs {
			add(kv.Key)
		}
	}
	return keys
}

// ErrUndecided: the search for an order took too long.
var ErrUndecided = errors.New("no verdict in time")

// Linearizable checks a history without its watchers. limit is the time for each group of operations; a group that is
// not decided in time is a fault. If dir is not "", pictures of faults are written there.
//
// Where many outcomes are unknown, there may be too many orders to try. Then the watchers' events tell which of those
// operations took effect, and at which revision, and the search starts again.
func Linearizable(h *History, limit time.Duration, dir string) error {
	var faults []error
	for name, ops := range parts(h) {
		m := &model{keys: keysOf(ops)}
		if len(m.keys) > maxKeys {
			faults = append(faults, fmt.Errorf("%s: %d keys are more than the model has", name, len(m.keys)))
			continue
		}
		spec := m.porcupine()
		result, info := porcupine.CheckOperationsVerbose(spec, operations(ops), limit/6)
		if result == porcupine.Unknown {
			result, info = porcupine.CheckOperationsVerbose(spec, operations(resolve(h, ops)), limit)
		}
		if result == porcupine.Ok {
			continue
		}
		err := fmt.Errorf("%s: no order of its %d operations explains the answers", name, len(ops))
		if result == porcupine.Unknown {
			err = fmt.Errorf("%s, %d operations: %w", name, len(ops), ErrUndecided)
		}
		if dir != "" {
			err = errors.Join(err, porcupine.VisualizePath(spec, info, filepath.Join(dir, strings.ReplaceAll(strings.TrimSuffix(name, "/"), "/", "-")+".html")))
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

func operations(ops []*Op) []porcupine.Operation {
	list := make([]porcupine.Operation, len(ops))
	for i, o := range ops {
		list[i] = porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: o.Return}
		if !o.known() && o.Revision == 0 {
			list[i].Return = math.MaxInt64
		}
	}
	return list
}

// resolve uses the watchers' events for operations of unknown outcome that put something. If a watcher saw the
// operation's value, it took effect at that revision, before any answer with that revision or a later one. If no
// watcher saw the value, it never took effect.
func resolve(h *History, ops []*Op) []*Op {
	if len(h.Watchers) == 0 {
		return ops
	}
	seen := map[string]int64{}
	for i := range h.Watchers[0].Events {
		if e := &h.Watchers[0].Events[i]; !e.Progress && !e.Delete {
			seen[e.KV.Value] = e.Revision
		}
	}
	var out []*Op
	for _, o := range ops {
		put := slices.IndexFunc(o.Writes, func(w Write) bool { return !w.Delete })
		if o.known() || put < 0 {
			out = append(out, o)
			continue
		}
		revision := seen[o.Writes[put].Value]
		if revision == 0 {
			continue
		}
		resolved := *o
		resolved.Revision, resolved.Succeeded, resolved.Changed, resolved.Return = revision, true, true, math.MaxInt64
		for i := range h.Ops {
			if other := &h.Ops[i]; other.known() && other.Revision >= revision {
				resolved.Return = min(resolved.Return, other.Return)
			}
		}
		out = append(out, &resolved)
	}
	return out
}

// Check runs both checkers.
func Check(h *History, limit time.Duration, dir string) error {
	var faults []error
	if err := Replay(h); err != nil {
		faults = append(faults, fmt.Errorf("replay of the events: %w", err))
	}
	if err := Linearizable(h, limit, dir); err != nil {
		faults = append(faults, fmt.Errorf("linearizability: %w", err))
	}
	return errors.Join(faults...)
}
