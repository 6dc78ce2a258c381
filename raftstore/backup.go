package raftstore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

// restoreLeap is by how many revisions a restored state is ahead of the one it
// replaces: more than could be written meanwhile, so that no revision ever means
// two things.
const restoreLeap = 1 << 20

// SaveSnapshot writes the state as it is now, every acknowledged write in it, in
// a form that VerifySnapshot and RestoreSnapshot read. Writes go on meanwhile.
func (s *Store) SaveSnapshot(ctx context.Context, w io.Writer) (mvcc.SnapshotInfo, error) {
	if err := s.consensus.current(ctx); err != nil {
		return mvcc.SnapshotInfo{}, err
	}
	r := s.machine.root.Load()
	return mvcc.WriteSnapshotAt(&untilDone{ctx, w}, r, r.Index, r.Term)
}

// untilDone ends a long write with its context.
type untilDone struct {
	ctx context.Context
	w   io.Writer
}

func (u *untilDone) Write(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.w.Write(p)
}

// RestoreSnapshot replaces the state, on this peer and then on all others, by
// the one in r. The revision goes on from the larger of both; what watchers and
// readers know of earlier ones is compacted, so they list anew. Keys under the
// prefixes in keep stay as they are now. Only the leader can: ErrNotLeader.
// A snapshot that cannot be read changes nothing.
func (s *Store) RestoreSnapshot(ctx context.Context, r io.Reader, keep ...string) error {
	if !s.consensus.leading() {
		return ErrNotLeader
	}
	st, _, err := mvcc.ReadSnapshotAt(bufio.NewReaderSize(&readUntilDone{ctx, r}, 1<<20))
	if err != nil {
		return err
	}
	if err := s.consensus.current(ctx); err != nil {
		return err
	}
	now := s.machine.root.Load()
	for _, prefix := range keep {
		st.Keep(prefix, now)
	}
	st.Rebase(now.View.Rev + restoreLeap)
	body, size, done, err := s.spool(st.Capture(), now)
	if err != nil {
		return err
	}
	defer done()
	err = s.consensus.raft.Restore(&raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: now.Index, Term: now.Term, Size: size}, body, 0)
	if err != nil {
		return s.consensus.explain(err)
	}
	// Raft's own entry after a restore is none that has an effect; reads wait
	// for one that has.
	return s.consensus.explain(s.consensus.markTerm())
}

type readUntilDone struct {
	ctx context.Context
	r   io.Reader
}

func (u *readUntilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}

// spool encodes a state, to a nameless file beside the log if there is one.
func (s *Store) spool(r, now *mvcc.Root) (body io.Reader, size int64, done func(), err error) {
	if s.dir == nil {
		var b bytes.Buffer
		_, err := mvcc.WriteSnapshotAt(&b, r, now.Index, now.Term)
		return &b, int64(b.Len()), func() {}, err
	}
	f, err := os.CreateTemp(s.dir.path, "restore-*.tmp")
	if err != nil {
		return nil, 0, nil, diskfile.Error(s.dir.path, err)
	}
	done = func() { f.Close() }
	err = os.Remove(f.Name())
	var info mvcc.SnapshotInfo
	if err == nil {
		info, err = mvcc.WriteSnapshotAt(f, r, now.Index, now.Term)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		done()
		if errors.Is(err, ErrTooLarge) {
			return nil, 0, nil, err
		}
		return nil, 0, nil, fmt.Errorf("restore: %w", diskfile.Error(s.dir.path, err))
	}
	return f, info.Bytes, done, nil
}
