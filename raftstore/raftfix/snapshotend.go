package raftfix

import (
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// SnapshotEnd remembers the last entry of the newest snapshot, as index and term.
//
// Upstream: after a snapshot was installed, the log begins behind it. A new leader asks whether this server has the snapshot's
// last entry, and Raft looks for it in the log only.
//
// Consequence: the server says no and is sent the same snapshot again, for ever.
//
//	snapshot ......N │ N+1 N+2 … log
//	               └─ Entry(N) answers with its term
//
// The log store answers for that entry. TestTheLogKnowsTheEntryBeforeItsFirst and seed 320 of TestSeedsThatFailedOnce show it.
type SnapshotEnd struct {
	last atomic.Pointer[raft.Log]
}

// Entry returns the last entry of the newest snapshot, without its data, if it has the given index; nil otherwise.
func (e *SnapshotEnd) Entry(index uint64) *raft.Log {
	if l := e.last.Load(); l != nil && l.Index == index {
		return l
	}
	return nil
}

// Set notes that m is the newest snapshot.
func (e *SnapshotEnd) Set(m *raft.SnapshotMeta) {
	e.last.Store(&raft.Log{Index: m.Index, Term: m.Term, Type: raft.LogNoop})
}

// Watch notes the newest snapshot in s and returns s so that e is told of later ones.
func (e *SnapshotEnd) Watch(s raft.SnapshotStore) (raft.SnapshotStore, error) {
	list, err := s.List()
	if err != nil {
		return nil, err
	}
	if len(list) > 0 {
		e.Set(list[0])
	}
	return watchedSnapshots{s, e}, nil
}

type watchedSnapshots struct {
	raft.SnapshotStore
	end *SnapshotEnd
}

// Open implements raft.SnapshotStore. Raft opens a snapshot to install it and, on the leader, to send it: either ends in an
// entry that is committed.
func (w watchedSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, r, err := w.SnapshotStore.Open(id)
	if err == nil {
		w.end.Set(m)
	}
	return m, r, err
}
