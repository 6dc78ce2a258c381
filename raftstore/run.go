package raftstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

const (
	boundInterval = time.Second
	revokeAtOnce  = 64
	revokePause   = time.Second
	snapshotPause = 30 * time.Second // after one that failed
)

// Run expires leases, ages history and takes snapshots until ctx ends, then hands leadership over, closes the store and returns nil. It
// returns early, with an error, only when this program cannot go on: at an entry written by a newer version.
func (s *Store) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg   sync.WaitGroup
		fail error
	)
	wg.Go(func() { s.expireLeases(ctx) })
	wg.Go(func() {
		defer cancel()
		fail = s.boundHistoryAndLog(ctx)
	})
	wg.Wait()
	s.handOver()
	return errors.Join(fail, s.Close())
}

// handOver makes another voter lead if this one does and there is another, so that no client waits for an election timeout.
func (s *Store) handOver() {
	if !s.consensus.Leading() || s.consensus.Sole() {
		return
	}
	if err := s.consensus.Transfer(context.Background(), ""); err != nil {
		s.log.Info("leadership cannot be handed over, the other servers elect a leader", "err", err)
	}
}

// expireLeases revokes leases as they run out, while this peer leads.
func (s *Store) expireLeases(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := s.consensus.LeaderChanged()
		next := time.Hour
		if t := s.consensus.Term(); t.Here && s.consensus.Leading() {
			var ids []mvcc.LeaseID
			ids, next = s.lessor.expired(t.Number, revokeAtOnce)
			s.revokeAll(ctx, t.Number, ids)
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-s.consensus.Closed():
			return
		case <-changed:
		case <-s.lessor.wake:
		case <-timer.C:
		}
	}
}

// revokeAll revokes leases that ran out, in one append, in the term in which they ran out. In a later term the next leader gives them
// their full time again, and their holders may renew them there.
func (s *Store) revokeAll(ctx context.Context, number uint64, ids []mvcc.LeaseID) {
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			revoke := mvcc.Command{Kind: mvcc.KindLeaseRevoke, Lease: id}
			a, err := s.consensus.ProposeIn(ctx, revoke.Encode(), number)
			err = errors.Join(err, a.Err)
			if err != nil && !errors.Is(err, ErrLeaseNotFound) {
				s.lessor.giveUp(id, revokePause)
				s.log.Debug("lease ran out and cannot be revoked yet, it is tried again", "lease", int64(id), "err", err)
			}
		})
	}
	wg.Wait()
}

// boundHistoryAndLog compacts history and takes snapshots until ctx ends. Work that fails is tried again at the next turn.
func (s *Store) boundHistoryAndLog(ctx context.Context) error {
	keep := retention{age: s.cfg.HistoryAge, events: s.cfg.HistoryEvents, bytes: s.cfg.HistoryBytes}
	notBefore := time.Time{} // of the next snapshot
	every := min(boundInterval, s.cfg.HistoryAge/4)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.consensus.Closed():
			return nil
		case now := <-tick.C:
			if err := s.machine.halted.Load(); err != nil {
				return fmt.Errorf("cannot follow the cluster: %w", *err)
			}
			s.ageHistory(ctx, &keep, now)
			if now.After(notBefore) && !s.boundLog(ctx) {
				notBefore = now.Add(snapshotPause)
			}
		}
	}
}

func (s *Store) ageHistory(ctx context.Context, keep *retention, now time.Time) {
	r := s.machine.root.Load()
	rev := keep.decide(now, &r.Hist, r.View.Rev)
	if rev == 0 || !s.consensus.Leading() {
		return
	}
	err := s.Compact(ctx, rev)
	if err != nil && !errors.Is(err, ErrCompacted) && ctx.Err() == nil && s.consensus.Refused() == nil {
		s.log.Warn("history cannot be compacted, it grows until the next attempt", "revision", rev, "err", err)
	}
}

// boundLog takes a snapshot when it is time for one. It returns false when that failed: then the log stays whole, and nothing is
// lost.
func (s *Store) boundLog(ctx context.Context) bool {
	m := s.machine
	entries, bytes := m.entries.Load(), m.bytes.Load()
	if !wantSnapshot(entries, bytes, s.cfg.SnapshotEntries, m.stateBytes.Load()) {
		return true
	}
	err := s.snapshot(ctx)
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
		s.log.Warn("snapshot failed, the log is kept whole until the next attempt", "err", err)
	}
	return err == nil
}

// Snapshot writes the state beside the log and removes the log before it. Writes go on meanwhile.
func (s *Store) Snapshot() error { return s.snapshot(context.Background()) }

// snapshot is Snapshot with an end: on a disk that takes no writes it would wait for as long as the disk refuses.
func (s *Store) snapshot(ctx context.Context) error {
	m := s.machine
	entries, bytes := m.entries.Load(), m.bytes.Load()
	began := time.Now()
	if err := s.consensus.Snapshot(ctx); err != nil {
		snapshotSeconds.WithLabelValues("error").Observe(time.Since(began).Seconds())
		return err
	}
	snapshotSeconds.WithLabelValues("success").Observe(time.Since(began).Seconds())
	m.entries.Add(-entries)
	m.bytes.Add(-bytes)
	return nil
}
