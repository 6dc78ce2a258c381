package raftstore

import (
	"io"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/mvcc"
	"github.com/balsahq/balsa/raftstore/raftlog"
	"github.com/balsahq/balsa/raftstore/snapshot"
)

// fsm lets Raft drive the machine. Raft calls it from one goroutine.
type fsm struct {
	m *machine
	// applied is called with the last entry of each batch; may be nil.
	applied func(index, term uint64)
	mark    *raftlog.CommitMark // nil in memory
}

var _ raft.BatchingFSM = (*fsm)(nil)

// Apply implements raft.FSM.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM: one new root for the whole batch. The results reach the proposers through the machine and not
// through Raft, because the peer that proposed a command need not be the leader.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	last := logs[len(logs)-1]
	f.mark.Set(last.Index) // before any reader sees it
	for _, l := range logs {
		f.m.applyLog(l)
	}
	f.m.publish()
	if f.applied != nil {
		f.applied(last.Index, last.Term)
	}
	return make([]any, len(logs))
}

// applyLog applies one entry of Raft's, of whatever type.
func (m *machine) applyLog(l *raft.Log) {
	switch {
	case l.Type == raft.LogCommand:
		m.applyEntry(l.Index, l.Term, l.Data)
	case l.Index > m.index.Load():
		m.term.Store(l.Term)
		m.skip(l.Index)
	}
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

type fsmSnapshot struct{ root *mvcc.Root }

// Persist implements raft.FSMSnapshot.
func (s *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	if k, ok := sink.(*snapshot.Sink); ok {
		k.Trust()
	}
	if _, err := mvcc.WriteSnapshotAt(sink, s.root, s.root.Index, s.root.Term); err != nil {
		_ = sink.Cancel() // the first error says why
		return err
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (s *fsmSnapshot) Release() {}
