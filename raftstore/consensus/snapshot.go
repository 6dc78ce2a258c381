package consensus

import (
	"context"
	"io"

	"github.com/hashicorp/raft"
)

// Snapshot makes Raft write a snapshot of the state and drop the log before it. On a disk that takes nothing it waits for as
// long, or until ctx ends.
func (c *Consensus) Snapshot(ctx context.Context) error { return c.Await(ctx, c.Raft().Snapshot()) }

// Restore replaces the state on every server by the snapshot in body, which is of the entry that at names.
func (c *Consensus) Restore(at *raft.SnapshotMeta, body io.Reader) error {
	if err := c.Raft().Restore(at, body, 0); err != nil {
		return c.Explain(err)
	}
	// Raft's own entry after a restore does not advance Progress, which reads wait for. The mark of the term does.
	return c.Explain(c.markTerm())
}
