package raftstore

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/balsahq/balsa/raftstore/consensus"
	"github.com/balsahq/balsa/raftstore/mvcc"
	"github.com/balsahq/balsa/raftstore/raftlog"
)

// Store is one peer's copy of the replicated keys. All methods may be called
// from any goroutine; reads never block and never wait for writes.
type Store struct {
	cfg       Config
	log       *slog.Logger
	meta      dirMeta
	dir       *dataDir
	mark      *raftlog.CommitMark
	machine   *machine
	lessor    *lessor
	consensus *consensus.Consensus

	closeOnce sync.Once
	closeErr  error

	mu   sync.Mutex
	held map[string]*Leadership // leaderships of this process, by name and holder
}

// ClusterID returns the identity of the cluster, which is made once.
func (s *Store) ClusterID() string { return s.meta.ClusterID }

// ServerID returns the identity of this peer, which is made once and kept on disk.
func (s *Store) ServerID() string { return s.meta.ServerID }

// Err returns why writes are refused now (ErrDiskFull, ErrDiskReadOnly, ErrDisk, ErrNoLeader, ErrClosed), nil while they are
// accepted.
func (s *Store) Err() error {
	select {
	case <-s.consensus.Closed():
		return ErrClosed
	default:
	}
	if err := s.consensus.Refused(); err != nil {
		return err
	}
	if s.consensus.Term().Leader == "" {
		return ErrNoLeader
	}
	return nil
}

// Txn runs t as one replicated step and returns when it is applied here. An ErrInvalid, ErrDuplicateKey, ErrTooLarge,
// ErrLeaseNotFound or ErrKeyNotFound means that nothing changed; after the end of ctx, ErrNoLeader or a disk error the transaction
// may have been applied or not. A transaction without writes goes through Barrier instead of the log. Values are kept without a
// copy: the caller must not change them later.
func (s *Store) Txn(ctx context.Context, t mvcc.Txn) (*mvcc.TxnResult, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	if t.ReadOnly() {
		v, err := s.Barrier(ctx)
		if err != nil {
			return nil, err
		}
		return v.ReadTxn(&t), nil
	}
	a, err := s.propose(ctx, &mvcc.Command{Kind: mvcc.KindTxn, Txn: t})
	return a.Txn, err
}

// propose replicates c and returns its effect.
func (s *Store) propose(ctx context.Context, c *mvcc.Command) (mvcc.Applied, error) {
	entry := c.Encode()
	if len(entry) > s.cfg.MaxEntryBytes {
		return mvcc.Applied{}, fmt.Errorf("%w: %d bytes, at most %d allowed", ErrTooLarge, len(entry), s.cfg.MaxEntryBytes)
	}
	a, err := s.consensus.Propose(ctx, entry)
	if err != nil {
		return mvcc.Applied{}, err
	}
	return a, a.Err
}

// View returns the newest applied state.
func (s *Store) View() *mvcc.View { return s.machine.root.Load().View }

// ViewAt returns the state as it was at revision rev: ErrCompacted when rev is older than CompactRevision, ErrFutureRevision when it
// is not reached yet.
func (s *Store) ViewAt(rev int64) (*mvcc.View, error) {
	r := s.machine.root.Load()
	return r.Hist.ViewAt(rev, r.View)
}

// Barrier returns a view at least as new as every write that was acknowledged
// anywhere in the cluster before the call.
func (s *Store) Barrier(ctx context.Context) (*mvcc.View, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.consensus.AwaitCurrent(ctx); err != nil {
		return nil, err
	}
	return s.View(), nil
}

// Compact removes the history before rev; the state at rev stays readable.
func (s *Store) Compact(ctx context.Context, rev int64) error {
	_, err := s.propose(ctx, &mvcc.Command{Kind: mvcc.KindCompact, Revision: rev})
	return err
}

// CompactRevision returns the oldest revision that ViewAt can show.
func (s *Store) CompactRevision() int64 { return s.machine.root.Load().Hist.Compacted() }

// Watch starts a watcher; see WatchRequest. ErrCompacted when StartRevision is
// older than history.
func (s *Store) Watch(req WatchRequest) (*Watcher, error) { return s.machine.hub.watch(req) }

// LeaseGrant makes a lease that expires when it was not renewed for ttl, which is rounded down to milliseconds. With id 0 it picks a
// random ID. ErrLeaseExists when id is taken.
func (s *Store) LeaseGrant(ctx context.Context, id mvcc.LeaseID, ttl time.Duration) (mvcc.LeaseID, error) {
	if ttl < mvcc.MinLeaseTTL || ttl > mvcc.MaxLeaseTTL {
		return 0, fmt.Errorf("%w: lease of %v, %v to %v allowed", ErrInvalid, ttl, mvcc.MinLeaseTTL, mvcc.MaxLeaseTTL)
	}
	if id < 0 {
		return 0, fmt.Errorf("%w: lease ID %d", ErrInvalid, id)
	}
	if id == 0 {
		id = randomLease()
	}
	_, err := s.propose(ctx, &mvcc.Command{Kind: mvcc.KindLeaseGrant, Lease: id, TTL: ttl.Milliseconds()})
	if err != nil {
		return 0, err
	}
	return id, nil
}

func randomLease() mvcc.LeaseID {
	var b [8]byte
	rand.Read(b[:])
	return mvcc.LeaseID(binary.BigEndian.Uint64(b[:])>>1 | 1)
}

// LeaseKeepAlive gives the lease its full time again and returns that time. It writes nothing to the log: after a change of leader or
// a restart every lease has its full time anyway.
func (s *Store) LeaseKeepAlive(ctx context.Context, id mvcc.LeaseID) (time.Duration, error) {
	return s.askLeader(ctx, func() (time.Duration, error) { return s.ServeKeepAlive(ctx, id) },
		func(leader string) (time.Duration, error) { return s.cfg.Peers.KeepAlive(ctx, leader, id) })
}

// LeaseRevoke ends the lease and deletes the keys under it, in one revision.
func (s *Store) LeaseRevoke(ctx context.Context, id mvcc.LeaseID) error {
	_, err := s.propose(ctx, &mvcc.Command{Kind: mvcc.KindLeaseRevoke, Lease: id})
	return err
}

// Leases returns all leases, ordered by ID.
func (s *Store) Leases() []mvcc.Lease {
	var out []mvcc.Lease
	s.machine.root.Load().Leases.Scan(func(id mvcc.LeaseID, ttl int64) bool {
		out = append(out, mvcc.Lease{ID: id, TTL: time.Duration(ttl) * time.Millisecond})
		return true
	})
	return out
}

// LeaseRemaining returns how long the lease lives if it is not renewed. It asks the leader, which alone measures that time.
func (s *Store) LeaseRemaining(ctx context.Context, id mvcc.LeaseID) (time.Duration, error) {
	return s.askLeader(ctx, func() (time.Duration, error) { return s.ServeLeaseRemaining(ctx, id) },
		func(leader string) (time.Duration, error) { return s.cfg.Peers.LeaseRemaining(ctx, leader, id) })
}

// Close ends the store: watchers and writes under way get ErrClosed, and every goroutine of the store has ended when Close returns.
// Views stay readable. Run calls Close, so only a store that was never run needs it.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.machine.hub.close()
		s.closeErr = s.consensus.Close()
		if s.dir != nil {
			s.closeErr = errors.Join(s.closeErr, s.mark.Close(), s.dir.close())
		}
	})
	return s.closeErr
}
