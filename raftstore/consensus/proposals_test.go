package consensus

import (
	"errors"
	"testing"
	"time"

	"github.com/balsahq/balsa/raftstore/errdefs"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

func entryOf(origin, term uint64, seqs ...uint64) *Entry {
	put := mvcc.Command{Kind: mvcc.KindTxn, Txn: mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/k"}}}}
	b := &Entry{Origin: origin, Term: term}
	for _, s := range seqs {
		b.Items = append(b.Items, Item{Seq: s, Command: put.Encode()})
	}
	return b
}

func TestAnAttemptIsRepeatedOnlyWhenItCannotHaveItsEffectTwice(t *testing.T) {
	o := newProposals()
	w := o.add([]byte("x"), 0)
	take := func(term, applied uint64) int {
		ws, _ := o.nextBatch(term, applied)
		return len(ws)
	}
	if take(2, 1) != 1 || take(2, 1) != 0 {
		t.Fatal("the first attempt")
	}
	o.requeue([]*proposal{w}, 2)
	if take(2, 1) != 1 {
		t.Fatal("in the same term the leader knows what it took")
	}
	o.requeueOverdue(time.Now().Add(-time.Hour), 3)
	if take(3, 2) != 0 {
		t.Fatal("the attempt of term 2 may be in the log that is being applied")
	}
	if take(3, 3) != 1 {
		t.Fatal("term 2 is over, and the attempt had no effect")
	}
	o.settle([]Result{{Seq: w.seq, Term: 2, Late: true}})
	if take(3, 3) != 0 {
		t.Fatal("an old attempt came too late, the new one is under way")
	}
	o.settle([]Result{{Seq: w.seq, Term: 3}})
	if got := <-w.done; got.err != nil || !o.empty() {
		t.Fatal(got)
	}
}

func TestTheLeaderTakesEachNumberOnceATerm(t *testing.T) {
	var l ledger
	if n := len(l.enter(entryOf(7, 2, 1, 2), 1)); n != 2 {
		t.Fatal(n)
	}
	if n := len(l.enter(entryOf(7, 2, 2, 3), 1)); n != 1 {
		t.Fatal(n)
	}
	if n := len(l.enter(entryOf(8, 2, 1), 1)); n != 1 {
		t.Fatal("another origin", n)
	}
	l.strike(entryOf(7, 2, 3))
	if n := len(l.enter(entryOf(7, 2, 3), 3)); n != 1 {
		t.Fatal("what did not get into the log", n)
	}
	if n := len(l.enter(entryOf(7, 2, 1, 2), 1)); n != 0 {
		t.Fatal("what is finished came late", n)
	}
	for i := uint64(4); i < 3*pruneAt; i++ {
		l.enter(entryOf(7, 2, i), i)
	}
	if n := len(l.origins[7].seqs); n > pruneAt+1 {
		t.Fatalf("%d numbers are kept", n)
	}
	if n := len(l.enter(entryOf(7, 3, 1), 1)); n != 1 {
		t.Fatal("a new term", n)
	}
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add(entryOf(7, 2, 1, 2).Encode())
	f.Add([]byte{EntryVersion, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, data []byte) {
		if CheckEntry(data) == nil && len(data) > 0 && data[0] == EntryVersion {
			b, err := DecodeEntry(data)
			if err != nil || b.checkKnown() != nil {
				t.Fatalf("a checked entry is not known: %v, %v", err, b.checkKnown())
			}
			if again, err := DecodeEntry(b.Encode()); err != nil || len(again.Items) != len(b.Items) || again.Term != b.Term || again.Origin != b.Origin {
				t.Fatalf("%+v was encoded as %+v: %v", b, again, err)
			}
		}
	})
}

func TestAWriteThatASnapshotSwallowedIsNotProposedAgain(t *testing.T) {
	o := newProposals()
	sent, waiting := o.add([]byte("sent"), 0), (*proposal)(nil)
	if ws, _ := o.nextBatch(3, 3); len(ws) != 1 {
		t.Fatal(ws)
	}
	waiting = o.add([]byte("waiting"), 0)
	o.failSent()
	if r := <-sent.done; !errors.Is(r.err, errdefs.ErrNoLeader) {
		t.Fatal(r.err)
	}
	if ws, _ := o.nextBatch(4, 4); len(ws) != 1 || ws[0] != waiting {
		t.Fatal("proposed again", ws)
	}
}

func TestARevocationIsNotProposedInALaterTerm(t *testing.T) {
	o := newProposals()
	w := o.add([]byte("revoke"), 3)
	if ws, _ := o.nextBatch(4, 4); len(ws) != 0 {
		t.Fatal("the leader of term 4 was asked to revoke what ran out in term 3")
	}
	if r := <-w.done; !errors.Is(r.err, errdefs.ErrNotLeader) {
		t.Fatal(r.err)
	}
}
