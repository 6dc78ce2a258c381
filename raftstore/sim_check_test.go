package raftstore_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/balsahq/balsa/raftstore"
)

// simState is the model: the keys of the check and the store's revision.
// Comparable, so that porcupine can use ==.
type simState struct {
	rev   int64
	cells [simKeys]simCell
}

// run is what the model makes of a transaction: its result beside the new
// state. It knows the compares and operations that simulated clients use.
func (s simState) run(t *raftstore.Txn) (next simState, succeeded bool, results []string) {
	next, succeeded = s, true
	for i := range t.Compares {
		succeeded = succeeded && s.holds(&t.Compares[i])
	}
	ops := t.Success
	if !succeeded {
		ops = t.Failure
	}
	for i := range ops {
		op := &ops[i]
		k := keyIndex(op.Key)
		switch {
		case op.Type == raftstore.OpPut:
			next.rev = s.rev + 1
			if k >= 0 {
				next.cells[k] = simCell{string(op.Value), cmp.Or(s.cells[k].create, next.rev), next.rev, s.cells[k].version + 1, op.Lease}
			}
			results = append(results, "put")
		case op.Type == raftstore.OpDelete:
			n := 0
			if k >= 0 && s.cells[k].mod != 0 {
				next.rev, n = s.rev+1, 1
				next.cells[k] = simCell{}
			}
			results = append(results, fmt.Sprint("deleted ", n))
		case op.Type == raftstore.OpRange:
			results = append(results, s.list())
		}
	}
	return next, succeeded, results
}

// list is the range over all keys, as text.
func (s simState) list() string {
	var b strings.Builder
	for i, c := range s.cells {
		if c.mod != 0 {
			fmt.Fprintf(&b, "%s=%+v ", simKey(i), c)
		}
	}
	return b.String()
}

func (s simState) holds(c *raftstore.Compare) bool {
	var cell simCell
	if k := keyIndex(c.Key); k >= 0 {
		cell = s.cells[k]
	}
	switch c.Target {
	case raftstore.CompareMod:
		return cell.mod == c.Int
	case raftstore.CompareVersion:
		return cell.version == c.Int
	case raftstore.CompareValue:
		return cell.mod != 0 && cell.value == string(c.Value)
	}
	panic("compare the model does not know")
}

func keyIndex(key string) int {
	if len(key) == 4 && strings.HasPrefix(key, "/k/") {
		return int(key[3] - '0')
	}
	return -1
}

// resultsOf is what a store answered, as run has it.
func resultsOf(ops []raftstore.Op, res []raftstore.OpResult) (out []string) {
	for i := range ops {
		switch ops[i].Type {
		case raftstore.OpPut:
			out = append(out, "put")
		case raftstore.OpDelete:
			out = append(out, fmt.Sprint("deleted ", res[i].Deleted))
		case raftstore.OpRange:
			var s simState
			for _, kv := range res[i].KVs {
				s.cells[keyIndex(kv.Key)] = cellOf(kv)
			}
			out = append(out, s.list())
		}
	}
	return out
}

// admits says whether op, done in state s, gives what its client was told.
func (s simState) admits(op *simOp) (simState, bool) {
	if op.read {
		return s, op.rev == s.rev && op.cells == s.cells
	}
	if at := s.rev; op.writes() && op.rev != at+1 || !op.writes() && op.rev != at {
		return s, false // soon said, and said often
	}
	if op.outside {
		s.rev = op.rev
		return s, true
	}
	next, succeeded, results := s.run(&op.txn)
	if op.happened {
		return next, next.rev == op.rev
	}
	ops := op.txn.Success
	if !succeeded {
		ops = op.txn.Failure
	}
	return next, next.rev == op.rev && succeeded == op.succeeded && slices.Equal(results, resultsOf(ops, op.results))
}

// verdict is the whole of what is checked after a run.
type verdict struct {
	h      *history
	states []simState // by revision
	tags   map[string]int64
	faults []string
}

func (v *verdict) failf(format string, args ...any) {
	if len(v.faults) < 20 {
		v.faults = append(v.faults, fmt.Sprintf(format, args...))
	}
}

// judge checks a run and returns what is wrong with it.
func judge(h *history) []string {
	v := &verdict{h: h, tags: make(map[string]int64), faults: h.faults}
	if !v.replay() {
		return v.faults
	}
	v.answers()
	v.realTime()
	v.serial()
	for _, w := range h.watches {
		v.watch(w)
	}
	v.leases()
	v.fences()
	if len(v.faults) == 0 {
		v.linearizable()
	}
	return v.faults
}

// replay builds the state at each revision from the events, which must be
// without a gap and consistent in themselves.
func (v *verdict) replay() bool {
	v.states = make([]simState, v.h.newest+1)
	v.states[1].rev = 1
	all := make(map[string]simCell)
	for rev := int64(2); rev <= v.h.newest; rev++ {
		events, ok := v.h.witness[rev]
		if !ok {
			v.failf("nobody saw revision %d", rev)
			return false
		}
		s := v.states[rev-1]
		s.rev = rev
		for _, e := range events {
			old := all[e.key]
			want := simCell{value: e.cell.value, create: cmp.Or(old.create, rev), mod: rev, version: old.version + 1, lease: e.cell.lease}
			if e.deleted {
				want = simCell{mod: rev}
			}
			if e.cell != want || e.deleted && old.mod == 0 {
				v.failf("%v does not follow from %+v", e, old)
			}
			if e.deleted {
				want = simCell{}
				delete(all, e.key)
			} else {
				v.tag(e.cell.value, rev)
				all[e.key] = want
			}
			if k := keyIndex(e.key); k >= 0 {
				s.cells[k] = want
			}
		}
		v.states[rev] = s
	}
	return len(v.faults) == 0
}

// tag notes where a value was written: one operation writes its own value once.
func (v *verdict) tag(value string, rev int64) {
	if !strings.HasPrefix(value, "t-") && !strings.HasPrefix(value, "fenced-") {
		return
	}
	if at, ok := v.tags[value]; ok && at != rev {
		v.failf("%s was written twice, at %d and at %d", value, at, rev)
	}
	v.tags[value] = rev
}

// answers checks each answer against the state it speaks of, and that what was
// refused did not happen.
func (v *verdict) answers() {
	for _, op := range v.h.ops {
		at, written := v.tags[op.tag]
		written = written && op.tag != ""
		switch {
		case op.refused && written:
			v.failf("client %d: %s was refused, but happened at %d", op.client, op.text, at)
		case !op.known || op.refused:
			if written && !op.refused {
				op.happened, op.rev = true, at
			}
			continue
		case op.rev < 1 || op.rev > v.h.newest:
			v.failf("client %d: %s was answered at %d, there is nothing after %d", op.client, op.text, op.rev, v.h.newest)
			continue
		}
		before := v.states[op.rev]
		if op.writes() {
			before = v.states[op.rev-1]
			if op.tag != "" && at != op.rev {
				v.failf("client %d: %s was acknowledged at %d, but is not there", op.client, op.text, op.rev)
			}
		} else if written {
			v.failf("client %d: %s is said to have failed at %d, but happened at %d", op.client, op.text, op.rev, at)
		}
		if _, ok := before.admits(op); !ok {
			v.failf("client %d: %s was answered %s; the state was\n\t%s\nand it said\n\t%s", op.client, op.text, op.outcome(), before.list(), op.said())
		}
	}
}

// writes reports whether the branch that ran wrote something.
func (op *simOp) writes() bool {
	if op.read || op.happened {
		return op.happened
	}
	ops := op.txn.Success
	if !op.succeeded {
		ops = op.txn.Failure
	}
	for i := range ops {
		if ops[i].Type == raftstore.OpPut || ops[i].Type == raftstore.OpDelete && op.results[i].Deleted > 0 {
			return true
		}
	}
	return false
}

func (op *simOp) said() string {
	if op.read {
		return simState{cells: op.cells}.list()
	}
	ops := op.txn.Success
	if !op.succeeded {
		ops = op.txn.Failure
	}
	return strings.Join(resultsOf(ops, op.results), "; ")
}

// place orders operations by what they saw: 2r writes revision r, 2r+1 saw it.
func (op *simOp) place() int64 {
	if op.writes() {
		return 2 * op.rev
	}
	return 2*op.rev + 1
}

// realTime checks that what was answered before something else was asked also
// comes before it. With answers it is the whole of linearizability, because
// revisions order everything; porcupine says it once more, knowing nothing of
// this.
func (v *verdict) realTime() {
	var known []*simOp
	for _, op := range v.h.ops {
		if (op.known && !op.refused || op.happened) && op.serial == "" {
			known = append(known, op)
		}
	}
	v.inOrder(known, "")
}

// serial checks that reads of one run of a server never go back.
func (v *verdict) serial() {
	runs := make(map[string][]*simOp)
	for _, op := range v.h.ops {
		if op.known && op.serial != "" {
			runs[op.serial] = append(runs[op.serial], op)
		}
	}
	for run, ops := range runs {
		v.inOrder(ops, " at "+run)
	}
}

func (v *verdict) inOrder(ops []*simOp, where string) {
	byRet := slices.Clone(ops)
	slices.SortFunc(ops, func(a, b *simOp) int { return cmp.Compare(a.call, b.call) })
	slices.SortFunc(byRet, func(a, b *simOp) int { return cmp.Compare(a.ret, b.ret) })
	var last *simOp
	for _, op := range ops {
		for len(byRet) > 0 && byRet[0].ret < op.call {
			if last == nil || byRet[0].place() > last.place() {
				last = byRet[0]
			}
			byRet = byRet[1:]
		}
		if last != nil && op.place() < last.place() {
			v.failf("client %d: %s%s began at %v and was answered %s, after client %d: %s was answered %s", op.client, op.text, where, op.began, op.outcome(), last.client, last.text, last.outcome())
		}
	}
}

// watch checks that a watcher saw each event of its range once and in order.
func (v *verdict) watch(w *simWatch) {
	for i, s := range w.spans {
		var want []simEvent
		for rev := s.after + 1; rev <= min(s.upTo, v.h.newest); rev++ {
			for _, e := range v.h.witness[rev] {
				if w.end == "" && e.key == w.key || w.end != "" && e.key >= w.key && e.key < w.end {
					want = append(want, e)
				}
			}
		}
		if !slices.Equal(want, s.events) {
			v.failf("%s from %d to %d saw %d events, there were %d: %s", w.text, s.after, s.upTo, len(s.events), len(want), firstDifference(s.events, want))
		}
		if i > 0 && !w.mayLose && s.after != w.spans[i-1].upTo {
			v.failf("%s lost its place at %d", w.text, w.spans[i-1].upTo)
		}
	}
}

func firstDifference(got, want []simEvent) string {
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return fmt.Sprintf("%v is missing", want[i])
		case i >= len(want):
			return fmt.Sprintf("%v is too many", got[i])
		case got[i] != want[i]:
			return fmt.Sprintf("%v instead of %v", got[i], want[i])
		}
	}
	return "none"
}

// leases checks that no lease ended before its time.
func (v *verdict) leases() {
	for _, l := range v.h.leases {
		if l.revoked {
			continue
		}
		for rev := int64(2); rev <= v.h.newest; rev++ {
			for _, e := range v.h.witness[rev] {
				if at := v.h.seen[rev]; e.key == l.key && e.deleted && at < l.alive+l.ttl {
					v.failf("lease %x of %v was renewed at %v, but its key was gone at %v", int64(l.id), l.ttl, l.alive, at.Round(time.Millisecond))
				}
			}
		}
	}
}

// fences checks that each write made under a leadership was made while that
// leadership lasted. Such a write says the name and the epoch in its value.
func (v *verdict) fences() {
	epoch := make(map[string]int64)
	for rev := int64(2); rev <= v.h.newest; rev++ {
		before := epoch["boss"]
		for _, e := range v.h.witness[rev] {
			if name, ok := strings.CutPrefix(e.key, raftstore.LeadershipPrefix); ok {
				epoch[name] = e.cell.create
				if !e.deleted && e.cell.create < before {
					v.failf("epoch %d after %d", e.cell.create, before)
				}
			}
			var claimed int64
			if n, _ := fmt.Sscanf(e.cell.value, "fenced-%d-", &claimed); n == 1 && claimed != before {
				v.failf("%v was written under epoch %d while it was %d", e, claimed, before)
			}
		}
	}
}

// sameState compares the keys of two servers, all of them.
func sameState(a, b *raftstore.View) string {
	dump := func(v *raftstore.View) (out []string) {
		v.Ascend("", "\x00", func(kv *raftstore.KeyValue) bool {
			out = append(out, fmt.Sprintf("%s %+v", kv.Key, cellOf(kv)))
			return true
		})
		return out
	}
	x, y := dump(a), dump(b)
	if a.Revision() != b.Revision() || !slices.Equal(x, y) {
		return fmt.Sprintf("at %d\n\t%s\nand at %d\n\t%s", a.Revision(), strings.Join(x, "\n\t"), b.Revision(), strings.Join(y, "\n\t"))
	}
	return ""
}
