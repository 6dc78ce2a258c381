package raftstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

var (
	genKey   = rapid.SampledFrom([]string{"a", "a/1", "a/2", "a/3", "b/1", "b/2", "c", "\xff", "\xff\xff"})
	genEnd   = rapid.SampledFrom([]string{"", "", "\x00", "a/3", "a0", "c", "\xff\xff"})
	genLease = rapid.SampledFrom([]mvcc.LeaseID{0, 0, 1, 2, 3})
)

func genCompare(t *rapid.T) mvcc.Compare {
	return mvcc.Compare{
		Key: genKey.Draw(t, "key"), RangeEnd: genEnd.Draw(t, "end"),
		Target: mvcc.CompareTarget(rapid.IntRange(0, 4).Draw(t, "target")), Result: mvcc.CompareResult(rapid.IntRange(0, 3).Draw(t, "result")),
		Int: rapid.Int64Range(0, 8).Draw(t, "int"), Value: []byte(rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "value")),
	}
}

func genOp(t *rapid.T, depth int) mvcc.Op {
	op := mvcc.Op{Type: mvcc.OpType(rapid.IntRange(0, 3).Draw(t, "type")), Key: genKey.Draw(t, "key"), PrevKV: rapid.Bool().Draw(t, "prev")}
	switch {
	case op.Type == mvcc.OpTxn && depth < 2:
		x := genTxn(t, depth+1)
		return mvcc.Op{Type: mvcc.OpTxn, Txn: &x}
	case op.Type == mvcc.OpDelete:
		op.RangeEnd = genEnd.Draw(t, "end")
	case op.Type == mvcc.OpRange:
		op.PrevKV = false
		op.RangeEnd, op.Limit = genEnd.Draw(t, "end"), rapid.Int64Range(0, 3).Draw(t, "limit")
		op.KeysOnly, op.CountOnly = rapid.Bool().Draw(t, "keysOnly"), rapid.Bool().Draw(t, "countOnly")
	default:
		op.Type = mvcc.OpPut
		op.IgnoreValue, op.IgnoreLease = rapid.IntRange(0, 4).Draw(t, "ignoreValue") == 0, rapid.IntRange(0, 4).Draw(t, "ignoreLease") == 0
		if !op.IgnoreValue {
			op.Value = []byte(rapid.SampledFrom([]string{"", "x", "y", "z"}).Draw(t, "value"))
		}
		if !op.IgnoreLease {
			op.Lease = genLease.Draw(t, "lease")
		}
	}
	return op
}

func genTxn(t *rapid.T, depth int) mvcc.Txn {
	var x mvcc.Txn
	for range rapid.IntRange(0, 2).Draw(t, "compares") {
		x.Compares = append(x.Compares, genCompare(t))
	}
	for range rapid.IntRange(0, 3).Draw(t, "success") {
		x.Success = append(x.Success, genOp(t, depth))
	}
	for range rapid.IntRange(0, 2).Draw(t, "failure") {
		x.Failure = append(x.Failure, genOp(t, depth))
	}
	return x
}

// admitted says whether the branch t takes may run: leases and keys it needs
// exist.
func (m *model) admitted(t mvcc.Txn) bool {
	held := true
	for _, c := range t.Compares {
		held = held && m.holds(c)
	}
	for _, op := range t.Branch(held) {
		if op.Type == mvcc.OpTxn && !m.admitted(*op.Txn) {
			return false
		}
		if op.Type == mvcc.OpPut {
			if _, ok := m.now()[op.Key]; !ok && (op.IgnoreValue || op.IgnoreLease) || op.Lease != 0 && !m.leases[op.Lease] {
				return false
			}
		}
	}
	return true
}

// subject is a store beside its model, and watchers with what they have seen.
type subject struct {
	s        *Store
	m        *model
	watchers []*watched
}

type watched struct {
	w     *Watcher
	req   WatchRequest
	since int64 // everything later must come
	seen  []string
}

func (x *subject) txn(t *rapid.T) {
	txn := genTxn(t, 0)
	res, err := x.s.Txn(context.Background(), txn)
	if errors.Is(err, ErrDuplicateKey) {
		return
	}
	if !x.m.admitted(txn) {
		if !errors.Is(err, ErrLeaseNotFound) && !errors.Is(err, ErrKeyNotFound) {
			t.Fatalf("inadmissible txn gave %v", err)
		}
		return
	}
	if err != nil {
		t.Fatalf("%+v: %v", txn, err)
	}
	next, log := clone(x.m.now()), []string(nil)
	want := x.m.txn(txn, next, &log)
	x.m.commit(next, log)
	if got := resultText(txn.Branch, res); !slices.Equal(got, want) {
		t.Fatalf("txn %+v\ngot  %q\nwant %q", txn, got, want)
	}
	if res.Revision != x.m.rev() {
		t.Fatalf("txn at revision %d, want %d", res.Revision, x.m.rev())
	}
}

func (x *subject) grant(t *rapid.T) {
	id := mvcc.LeaseID(rapid.IntRange(1, 3).Draw(t, "lease"))
	_, err := x.s.LeaseGrant(context.Background(), id, time.Hour)
	if x.m.leases[id] != errors.Is(err, ErrLeaseExists) {
		t.Fatalf("grant %d: %v", id, err)
	}
	x.m.leases[id] = true
}

func (x *subject) revoke(t *rapid.T) {
	id := mvcc.LeaseID(rapid.IntRange(1, 3).Draw(t, "lease"))
	err := x.s.LeaseRevoke(context.Background(), id)
	if x.m.leases[id] == errors.Is(err, ErrLeaseNotFound) {
		t.Fatalf("revoke %d: %v", id, err)
	}
	if err != nil {
		return
	}
	delete(x.m.leases, id)
	next, log := clone(x.m.now()), []string(nil)
	for _, k := range x.m.keys(next, "", "\x00") {
		if next[k].lease == id {
			x.m.remove(next, k, &log)
		}
	}
	x.m.commit(next, log)
}

func (x *subject) compact(t *rapid.T) {
	rev := rapid.Int64Range(0, x.m.rev()+1).Draw(t, "rev")
	err := x.s.Compact(context.Background(), rev)
	switch {
	case rev <= x.m.compacted:
		if !errors.Is(err, ErrCompacted) {
			t.Fatalf("compact %d at %d: %v", rev, x.m.compacted, err)
		}
	case rev > x.m.rev():
		if !errors.Is(err, ErrFutureRevision) {
			t.Fatalf("compact %d: %v", rev, err)
		}
	case err != nil:
		t.Fatal(err)
	default:
		x.m.compacted = rev
	}
}

func (x *subject) watch(t *rapid.T) {
	req := WatchRequest{Key: genKey.Draw(t, "key"), RangeEnd: genEnd.Draw(t, "end"), StartRevision: rapid.Int64Range(0, x.m.rev()+2).Draw(t, "start")}
	if rapid.Bool().Draw(t, "prefix") {
		req.RangeEnd = mvcc.PrefixEnd(req.Key)
	}
	w, err := x.s.Watch(req)
	if req.StartRevision > 0 && req.StartRevision <= x.m.compacted && x.m.compacted > 1 {
		if !errors.Is(err, ErrCompacted) {
			t.Fatalf("watch from %d: %v", req.StartRevision, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	since := x.m.rev()
	if req.StartRevision > 0 {
		since = req.StartRevision - 1
	}
	x.watchers = append(x.watchers, &watched{w: w, req: req, since: since})
}

// drain reads a watcher dry and checks what it has seen in all.
func (x *subject) drain(t *rapid.T, w *watched) {
	for {
		b, _, err := w.w.poll()
		if errors.Is(err, ErrOverrun) {
			if last := x.lastFor(w.req, x.m.compacted); last <= w.since {
				t.Fatalf("overrun, though nothing up to %d was missed", x.m.compacted)
			}
			w.w.Close()
			x.watchers = slices.DeleteFunc(x.watchers, func(o *watched) bool { return o == w })
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Events) == 0 {
			break
		}
		var got, want []string
		for _, e := range b.Events {
			got = append(got, eventText(e))
		}
		for r := w.since + 1; r <= b.Revision; r++ {
			want = append(want, x.eventsOf(w.req, r)...)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("watch %+v after %d\ngot  %q\nwant %q", w.req, w.since, got, want)
		}
		w.since = b.Revision
	}
	if p := w.w.Progress(); p < x.m.rev() {
		t.Fatalf("progress %d at revision %d", p, x.m.rev())
	}
	w.since = max(w.since, x.m.rev())
}

func (x *subject) eventsOf(req WatchRequest, rev int64) []string {
	var out []string
	for _, text := range x.m.events[rev] {
		key := strings.Fields(text)[1]
		if len(x.m.keys(map[string]modelKV{key: {}}, req.Key, req.RangeEnd)) == 1 {
			out = append(out, text)
		}
	}
	return out
}

// lastFor is the newest revision up to rev that touched the range.
func (x *subject) lastFor(req WatchRequest, rev int64) int64 {
	for ; rev > 0; rev-- {
		if len(x.eventsOf(req, rev)) > 0 {
			return rev
		}
	}
	return 0
}

// check compares every revision that can still be read.
func (x *subject) check(t *rapid.T) {
	if got := x.s.View().Revision(); got != x.m.rev() {
		t.Fatalf("revision %d, want %d", got, x.m.rev())
	}
	if got := x.s.CompactRevision(); got != x.m.compacted {
		t.Fatalf("compact revision %d, want %d", got, x.m.compacted)
	}
	for rev := x.m.compacted; rev <= x.m.rev(); rev++ {
		v, err := x.s.ViewAt(rev)
		if err != nil {
			t.Fatal(err)
		}
		start, end := genKey.Draw(t, "start"), genEnd.Draw(t, "end")
		var got, want []string
		v.Ascend(start, end, func(kv *mvcc.KeyValue) bool {
			got = append(got, fmt.Sprintf("%s %+v", kv.Key, kvText(kv)))
			return true
		})
		for _, k := range x.m.keys(x.m.at(rev), start, end) {
			want = append(want, fmt.Sprintf("%s %+v", k, x.m.at(rev)[k]))
		}
		if !slices.Equal(got, want) || v.Count(start, end) != len(want) || v.Len() != len(x.m.at(rev)) {
			t.Fatalf("at %d [%q, %q)\ngot  %q\nwant %q", rev, start, end, got, want)
		}
	}
	if _, err := x.s.ViewAt(x.m.compacted - 1); !errors.Is(err, ErrCompacted) {
		t.Fatal(err)
	}
	if _, err := x.s.ViewAt(x.m.rev() + 1); !errors.Is(err, ErrFutureRevision) {
		t.Fatal(err)
	}
}

func TestTheStoreDoesWhatTheModelDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, err := Open(Config{InMemory: true})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		x := &subject{s: s, m: newModel()}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 11).Draw(t, "step") {
			case 0:
				x.grant(t)
			case 1:
				x.revoke(t)
			case 2:
				x.compact(t)
			case 3, 4:
				x.watch(t)
			case 5:
				for _, w := range slices.Clone(x.watchers) {
					x.drain(t, w)
				}
			default:
				x.txn(t)
			}
		}
		for _, w := range slices.Clone(x.watchers) {
			x.drain(t, w)
		}
		x.check(t)
		checkRestored(t, s.machine)
	})
}

// checkRestored restores a snapshot of m and expects the same bytes again.
func checkRestored(t *rapid.T, m *machine) {
	var a, b bytes.Buffer
	if err := writeSnapshot(&a, m.root.Load()); err != nil {
		t.Fatal(err)
	}
	n := newMachine(newLessor())
	if err := n.restore(bytes.NewReader(a.Bytes())); err != nil {
		t.Fatal(err)
	}
	if err := writeSnapshot(&b, n.root.Load()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Fatal("a restored snapshot is another state")
	}
	if x, y := m.root.Load().View.Hash(), n.root.Load().View.Hash(); x != y {
		t.Fatalf("hash %x became %x", x, y)
	}
}
