package raftstore

import (
	"bufio"
	"context"
	"io"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/mvcc"
	"github.com/balsahq/balsa/raftstore/snapshot"
)

// restoreLeap is by how many revisions a restored state is ahead of the state it replaces. It is more than could be written meanwhile,
// so that no revision ever means two states.
const restoreLeap = 1 << 20

// SaveSnapshot writes the state as it is now, with every acknowledged write, in the format that VerifySnapshot and RestoreSnapshot
// read. Writes go on meanwhile.
func (s *Store) SaveSnapshot(ctx context.Context, w io.Writer) (mvcc.SnapshotInfo, error) {
	if err := s.consensus.AwaitCurrent(ctx); err != nil {
		return mvcc.SnapshotInfo{}, err
	}
	r := s.machine.root.Load()
	return mvcc.WriteSnapshotAt(snapshot.Writer(ctx, w), r, r.Index, r.Term)
}

// RestoreSnapshot replaces the state by the one in r, on this peer and then on all others. The revision goes on from the larger of
// both, and everything before counts as compacted, so that watchers and readers list anew. Keys under the prefixes in keep stay as they
// are now. ErrNotLeader when this peer does not lead. A snapshot that cannot be read changes nothing.
func (s *Store) RestoreSnapshot(ctx context.Context, r io.Reader, keep ...string) error {
	if !s.consensus.Leading() {
		return ErrNotLeader
	}
	st, _, err := mvcc.ReadSnapshotAt(bufio.NewReaderSize(snapshot.Reader(ctx, r), 1<<20))
	if err != nil {
		return err
	}
	if err := s.consensus.AwaitCurrent(ctx); err != nil {
		return err
	}
	now := s.machine.root.Load()
	for _, prefix := range keep {
		st.Keep(prefix, now)
	}
	st.Rebase(now.View.Rev + restoreLeap)
	dir := ""
	if s.dir != nil {
		dir = s.dir.path
	}
	spool, err := snapshot.NewSpool(dir, st.Capture(), now.Index, now.Term)
	if err != nil {
		return err
	}
	defer spool.Close()
	return s.consensus.Restore(&raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: now.Index, Term: now.Term, Size: spool.Size}, spool)
}
