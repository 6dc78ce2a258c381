package raftstore

import (
	"io"

	"github.com/hashicorp/raft"
)

// fsm lets Raft drive the machine. Raft calls it from one goroutine.
type fsm struct {
	m *machine
	// applied hears of the last entry of each batch; may be nil.
	applied func(index, term uint64)
}

var _ raft.BatchingFSM = (*fsm)(nil)

// Apply implements raft.FSM.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM: one new root for the whole batch.
// What an entry gave reaches its proposer through the machine, because only the
// peer that proposed it wants to know, and that need not be the leader.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	for _, l := range logs {
		if l.Type == raft.LogCommand {
			f.m.enter(l.Index, l.Term, l.Data)
		} else {
			f.m.term.Store(l.Term)
			f.m.skip(l.Index)
		}
	}
	f.m.publish()
	if last := logs[len(logs)-1]; f.applied != nil {
		f.applied(last.Index, last.Term)
	}
	return make([]any, len(logs))
}

// Snapshot implements raft.FSM: it holds a root, which costs nothing.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	return &fsmSnapshot{root: f.m.root.Load()}, nil
}

// Restore implements raft.FSM.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer r.Close()
	return f.m.restore(r)
}

type fsmSnapshot struct{ root *root }

// Persist implements raft.FSMSnapshot.
func (s *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := writeSnapshotAt(sink, s.root, s.root.index, s.root.term); err != nil {
		_ = sink.Cancel() // the first error says why
		return err
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (s *fsmSnapshot) Release() {}
