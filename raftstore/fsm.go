package raftstore

import (
	"io"

	"github.com/hashicorp/raft"
)

// fsm lets Raft drive the machine. Raft calls it from one goroutine.
type fsm struct{ m *machine }

var _ raft.BatchingFSM = (*fsm)(nil)

// Apply implements raft.FSM.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM: one new root for the whole batch.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	for i, l := range logs {
		if l.Type == raft.LogCommand {
			out[i] = f.m.apply(l.Index, l.Data)
		}
	}
	f.m.publish()
	return out
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
	if err := writeSnapshot(sink, s.root); err != nil {
		_ = sink.Cancel() // the first error says why
		return err
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (s *fsmSnapshot) Release() {}
