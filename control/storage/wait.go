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
	// readPatience is how long a consistent read waits for a leader and a quorum. An election takes a fraction of it;
	// past it the client is told to come back, instead of being held.
	readPatience = 3 * time.Second
	// futurePatience is how long a read waits for a resourceVersion that this server has not applied yet, and
	// futureRetry what the client is then told, in seconds; kube-apiserver's figures.
	futurePatience = 3 * time.Second
	futureRetry    = 1
	// everything, as key and end of a range, is every key.
	everything = "\x00"
)

// barrier returns a state that every write acknowledged before the call is in. It fails, with a reason to come back,
// when no quorum confirms that within readPatience.
func (s *store) barrier(ctx context.Context) (*raftstore.View, error) {
	patient, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	v, err := s.kv.Barrier(patient)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: no quorum confirmed the read within %v", raftstore.ErrNoLeader, readPatience)
	}
	return v, err
}

// reach returns a state of revision least or later. A client may have learnt of that revision from another server, so
// this one may be behind: it asks the leader and follows its own progress, whichever tells first. When everything that
// was acknowledged is here and least is still ahead, nobody has written it and there is nothing to wait for.
func (s *store) reach(ctx context.Context, least uint64) (*raftstore.View, error) {
	if v := s.kv.View(); least <= uint64(v.Revision()) {
		return v, nil
	}
	patient, cancel := context.WithTimeout(ctx, futurePatience)
	defer cancel()
	asked := make(chan error, 1)
	go func() {
		err := fault.Contain("control/storage", func() error { _, err := s.kv.Barrier(patient); return err })
		if err == nil {
			cancel() // complete: the wait below need not go on
		}
		asked <- err
	}()
	err := s.applied(patient, least)
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
	return nil, storage.NewTooLargeResourceVersionError(least, uint64(v.Revision()), futureRetry)
}

// applied returns when this server has applied revision least.
func (s *store) applied(ctx context.Context, least uint64) error {
	w, err := s.kv.Watch(raftstore.WatchRequest{Key: everything, RangeEnd: everything, StartRevision: int64(least)})
	if errors.Is(err, raftstore.ErrCompacted) {
		return nil // overtaken
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
