package storage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/storage"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore"
)

const (
	// barrierTimeout is how long a consistent read waits for a leader and a quorum. An election takes a fraction of this
	// time. After it the client gets a 503 that tells it to retry, so that it does not hang.
	barrierTimeout = 3 * time.Second
	// futureRevisionTimeout is how long a read waits for a resourceVersion that this server has not applied yet.
	// futureRevisionRetry is the Retry-After of the answer when the wait fails, in seconds. Both are kube-apiserver's
	// figures.
	futureRevisionTimeout = 3 * time.Second
	futureRevisionRetry   = 1
	// everything is the range of all keys: it is both its start and its end.
	allKeys = "\x00"
)

// barrier returns a state with every write that was acknowledged before the call. If no quorum confirms this within
// barrierTimeout, the error is ErrNoLeader, which tells the client to retry.
func (s *store) barrier(ctx context.Context) (*raftstore.View, error) {
	patient, cancel := context.WithTimeout(ctx, barrierTimeout)
	defer cancel()
	v, err := s.kv.Barrier(patient)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: no quorum confirmed the read within %v", raftstore.ErrNoLeader, barrierTimeout)
	}
	return v, err
}

// waitForRevision returns a state of revision least or later. A client may have learnt that revision from another
// server, so this server may be behind. waitForRevision asks the leader and watches its own progress at the same time;
// the first answer counts. If everything that was acknowledged is applied here and least is still ahead, that revision
// was never written and the wait ends.
func (s *store) waitForRevision(ctx context.Context, least uint64) (*raftstore.View, error) {
	if v := s.kv.View(); least <= uint64(v.Revision()) {
		return v, nil
	}
	patient, cancel := context.WithTimeout(ctx, futureRevisionTimeout)
	defer cancel()
	asked := make(chan error, 1)
	go func() {
		err := fault.Contain("control/storage", func() error { _, err := s.kv.Barrier(patient); return err })
		if err == nil {
			cancel() // all acknowledged writes are applied: stop the wait below
		}
		asked <- err
	}()
	err := s.waitApplied(patient, least)
	cancel()
	barrier := <-asked // Barrier returns with its context
	v := s.kv.View()
	switch {
	case least <= uint64(v.Revision()):
		return v, nil
	case ctx.Err() != nil:
		return nil, storeError(ctx.Err())
	case err != nil && patient.Err() == nil:
		return nil, storeError(err)
	case barrier == nil:
		return nil, storage.NewTooLargeResourceVersionError(least, uint64(v.Revision()), 0)
	}
	return nil, storage.NewTooLargeResourceVersionError(least, uint64(v.Revision()), futureRevisionRetry)
}

// waitApplied returns when this server has applied revision least.
func (s *store) waitApplied(ctx context.Context, least uint64) error {
	w, err := s.kv.Watch(raftstore.WatchRequest{Key: allKeys, RangeEnd: allKeys, StartRevision: int64(least)})
	if errors.Is(err, raftstore.ErrCompacted) {
		return nil // compacted: least was applied long ago
	}
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := w.Next(ctx); err != nil && !errors.Is(err, raftstore.ErrOverrun) {
		return err
	}
	return nil
}
