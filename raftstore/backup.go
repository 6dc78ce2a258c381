package raftstore

import (
	"bufio"
	"context"
	"io"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/mvcc"
	"github.com/balsahq/balsa/raftstore/snapshot"
)

// restoreLeap is by how many revisions a restored state is ahead of the one it
// replaces: more than could be written meanwhile, so that no revision ever means
// two things.
const restoreLeap = 1 << 20

// SaveSnapshot writes the state as it is now, every acknowledged write in it, in
// a form that VerifySnapshot and RestoreSnapshot read. Writes go on meanwhile.
func (s *Store) SaveSnapshot(ctx context.Context, w io.Writer) (mvcc.SnapshotInfo, error) {
	if err := s.consensus.AwaitCurrent(ctx); err != nil {
		return mvcc.SnapshotInfo{}, err
	}
	r := s.machine.root.Load()
	return mvcc.WriteSnapshotAt(snapshot.Writer(ctx, w), r, r.Index, r.Term)
}

// RestoreSnapshot replaces the state, on this peer and then on all others, by
// the one in r. The revision goes on from the larger of both; what watchers and
// readers know of earlier ones is compacted, so they list anew. Keys under the
// prefixes in keep stay as they are now. Only the leader can: ErrNotLeader.
// A snapshot that cannot be read changes nothing.
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
