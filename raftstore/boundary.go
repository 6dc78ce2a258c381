package raftstore

import (
	"io"

	"github.com/hashicorp/raft"
)

// boundary is a snapshot store that tells the log which entry comes just before
// those it holds. After a snapshot was installed the log begins behind it, and a
// new leader that asks whether this peer has the last entry of the snapshot must
// hear yes: Raft looks into the log only, and would be sent the same snapshot
// for ever.
//
//	snapshot ......N │ N+1 N+2 … log
//	               └─ GetLog(N) answers with its term
type boundary struct {
	raft.SnapshotStore
	disk *disk
}

// Open implements raft.SnapshotStore. Raft opens a snapshot to install it and,
// on the leader, to send it: both end in an entry that is committed.
func (b boundary) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, r, err := b.SnapshotStore.Open(id)
	if err == nil {
		b.note(m)
	}
	return m, r, err
}

// newest notes the snapshot that was restored when the store was opened.
func (b boundary) newest() error {
	list, err := b.List()
	if err == nil && len(list) > 0 {
		b.note(list[0])
	}
	return err
}

func (b boundary) note(m *raft.SnapshotMeta) {
	b.disk.before.Store(&raft.Log{Index: m.Index, Term: m.Term, Type: raft.LogNoop})
}
