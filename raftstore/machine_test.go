package raftstore

import (
	"bytes"
	"errors"
	"testing"

	"github.com/balsahq/balsa/raftstore/consensus"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

func entryOf(origin, term uint64, seqs ...uint64) *consensus.Entry {
	put := mvcc.Command{Kind: mvcc.KindTxn, Txn: mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/k"}}}}
	b := &consensus.Entry{Origin: origin, Term: term}
	for _, s := range seqs {
		b.Items = append(b.Items, consensus.Item{Seq: s, Command: put.Encode()})
	}
	return b
}

// A write was made twice when an election fell between two entries that were
// applied together: the sender saw the new term before it heard that the attempt
// of the old one had had its effect.
func TestATermIsSeenOnlyAfterItsPredecessorsResults(t *testing.T) {
	m := newMachine(newLessor())
	m.origin = 7
	told := 0
	m.settle = func(results []consensus.Result) {
		told += len(results)
		if _, term := m.progress.At(); term >= 3 {
			t.Errorf("term %d is seen before the results of term 2 are handed over", term)
		}
	}
	m.applyEntry(1, 2, entryOf(7, 2, 1).Encode())
	m.applyEntry(2, 3, entryOf(9, 3, 1).Encode())
	if _, term := m.progress.At(); term != 0 {
		t.Errorf("term %d is seen before anything is published", term)
	}
	m.publish()
	if _, term := m.progress.At(); told != 1 || term != 3 {
		t.Fatalf("%d results handed over, term %d", told, term)
	}
}

func TestABatchOfAnotherTermHasNoEffect(t *testing.T) {
	m := newMachine(newLessor())
	m.origin = 7
	var results []consensus.Result
	m.settle = func(r []consensus.Result) { results = append(results, r...) }
	m.applyEntry(1, 3, entryOf(7, 2, 1, 2).Encode())
	m.publish()
	if v := m.root.Load().View; v.Len() != 0 || len(results) != 2 || !results[0].Late || !results[1].Late {
		t.Fatalf("%d keys, results %+v", v.Len(), results)
	}
}

func FuzzApplyEntry(f *testing.F) {
	f.Add(entryOf(7, 2, 1, 2).Encode())
	f.Add([]byte{consensus.EntryVersion, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, data []byte) {
		m := newMachine(newLessor())
		m.applyEntry(1, 2, data)
		m.publish()
		if m.index.Load() != 1 {
			t.Fatal("the entry was not passed")
		}
	})
}

func TestASnapshotThatComesLateIsRefused(t *testing.T) {
	s := open(t, Config{InMemory: true})
	put(t, s, "/a", "1")
	var old bytes.Buffer
	if _, err := s.SaveSnapshot(t.Context(), &old); err != nil {
		t.Fatal(err)
	}
	put(t, s, "/a", "2")
	m := newMachine(newLessor())
	var now bytes.Buffer
	if _, err := s.SaveSnapshot(t.Context(), &now); err != nil {
		t.Fatal(err)
	}
	if err := m.restore(&now); err != nil {
		t.Fatal(err)
	}
	if err := m.restore(&old); !errors.Is(err, errLate) {
		t.Fatal("went back in time", err)
	}
}
