package raftstore

import (
	"testing"
	"time"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

func batchOf(origin, term uint64, seqs ...uint64) *batch {
	put := mvcc.Command{Kind: mvcc.KindTxn, Txn: mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/k"}}}}
	b := &batch{origin: origin, term: term}
	for _, s := range seqs {
		b.items = append(b.items, batchItem{seq: s, command: put.Encode()})
	}
	return b
}

// A write was made twice when an election fell between two entries that were
// applied together: the sender saw the new term before it heard that the attempt
// of the old one had had its effect.
func TestATermIsSeenOnlyAfterItsPredecessorsFates(t *testing.T) {
	m := newMachine(newLessor())
	m.origin = 7
	told := 0
	m.tell = func(fates []fate) {
		told += len(fates)
		if _, term := m.reach.at(); term >= 3 {
			t.Errorf("term %d is seen before the fates of term 2 are told", term)
		}
	}
	m.enter(1, 2, batchOf(7, 2, 1).encode())
	m.enter(2, 3, batchOf(9, 3, 1).encode())
	if _, term := m.reach.at(); term != 0 {
		t.Errorf("term %d is seen before anything is published", term)
	}
	m.publish()
	if _, term := m.reach.at(); told != 1 || term != 3 {
		t.Fatalf("%d fates told, term %d", told, term)
	}
}

func TestABatchOfAnotherTermHasNoEffect(t *testing.T) {
	m := newMachine(newLessor())
	m.origin = 7
	var fates []fate
	m.tell = func(f []fate) { fates = append(fates, f...) }
	m.enter(1, 3, batchOf(7, 2, 1, 2).encode())
	m.publish()
	if v := m.root.Load().View; v.Len() != 0 || len(fates) != 2 || !fates[0].late || !fates[1].late {
		t.Fatalf("%d keys, fates %+v", v.Len(), fates)
	}
}

func TestAnAttemptIsRepeatedOnlyWhenItCannotHaveItsEffectTwice(t *testing.T) {
	o := newOutbox()
	w := o.put([]byte("x"), 0)
	take := func(term, applied uint64) int {
		ws, _ := o.take(term, applied)
		return len(ws)
	}
	if take(2, 1) != 1 || take(2, 1) != 0 {
		t.Fatal("the first attempt")
	}
	o.again([]*wait{w}, 2)
	if take(2, 1) != 1 {
		t.Fatal("in the same term the leader knows what it took")
	}
	o.overdue(time.Now().Add(-time.Hour), 3)
	if take(3, 2) != 0 {
		t.Fatal("the attempt of term 2 may be in the log that is being applied")
	}
	if take(3, 3) != 1 {
		t.Fatal("term 2 is over, and the attempt had no effect")
	}
	o.settle([]fate{{seq: w.seq, term: 2, late: true}})
	if take(3, 3) != 0 {
		t.Fatal("an old attempt came too late, the new one is under way")
	}
	o.settle([]fate{{seq: w.seq, term: 3}})
	if got := <-w.done; got.err != nil || !o.empty() {
		t.Fatal(got)
	}
}

func TestTheLeaderTakesEachNumberOnceATerm(t *testing.T) {
	var l ledger
	if n := len(l.enter(batchOf(7, 2, 1, 2), 1)); n != 2 {
		t.Fatal(n)
	}
	if n := len(l.enter(batchOf(7, 2, 2, 3), 1)); n != 1 {
		t.Fatal(n)
	}
	if n := len(l.enter(batchOf(8, 2, 1), 1)); n != 1 {
		t.Fatal("another origin", n)
	}
	l.strike(batchOf(7, 2, 3))
	if n := len(l.enter(batchOf(7, 2, 3), 3)); n != 1 {
		t.Fatal("what did not get into the log", n)
	}
	if n := len(l.enter(batchOf(7, 2, 1, 2), 1)); n != 0 {
		t.Fatal("what is finished came late", n)
	}
	for i := uint64(4); i < 3*pruneAt; i++ {
		l.enter(batchOf(7, 2, i), i)
	}
	if n := len(l.origins[7].seqs); n > pruneAt+1 {
		t.Fatalf("%d numbers are kept", n)
	}
	if n := len(l.enter(batchOf(7, 3, 1), 1)); n != 1 {
		t.Fatal("a new term", n)
	}
}

func FuzzBatch(f *testing.F) {
	f.Add(batchOf(7, 2, 1, 2).encode())
	f.Add([]byte{batchVersion, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, data []byte) {
		if checkEntry(data) == nil && len(data) > 0 && data[0] == batchVersion {
			b, err := decodeBatch(data)
			if err != nil || b.known() != nil {
				t.Fatalf("a checked entry is not known: %v, %v", err, b.known())
			}
			if again, err := decodeBatch(b.encode()); err != nil || len(again.items) != len(b.items) || again.term != b.term || again.origin != b.origin {
				t.Fatalf("%+v was encoded as %+v: %v", b, again, err)
			}
		}
		m := newMachine(newLessor())
		m.enter(1, 2, data)
		m.publish()
	})
}
