package raftstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// LeadershipPrefix begins the keys of leaderships. The key LeadershipPrefix + name has the holder as its value and lives under the
// holder's lease.
const LeadershipPrefix = "/balsa/leadership/"

// Leadership is one term of one holder. Its epoch is the create revision of the key, so it grows from term to term. The state itself
// refuses a write that carries Fence once the term is over, whatever clocks say and however long the holder was paused.
type Leadership struct {
	store  *Store
	name   string
	holder string
	epoch  int64
	lease  mvcc.LeaseID
	ttl    time.Duration

	lost   chan struct{} // closed when the term is over
	ended  chan struct{} // closed when its goroutine has ended
	resign chan struct{} // closed to end the renewals
	once   sync.Once     // closes resign
}

// Campaign blocks until holder leads name, or ctx ends. The leadership is renewed in the background, and lost when it was not renewed
// for ttl.
//
// A leadership goes to the peer that leads Raft, which takes it from a holder on another peer at once: that holder died or is cut off,
// or its work is done better here, next to the log. Its fence keeps it from writing. Holders in one process wait for each other.
func (s *Store) Campaign(ctx context.Context, name, holder string, ttl time.Duration) (*Leadership, error) {
	if name == "" || holder == "" {
		return nil, fmt.Errorf("%w: campaign without a name or a holder", ErrInvalid)
	}
	key := LeadershipPrefix + name
	for {
		if err := s.awaitLeading(ctx); err != nil {
			return nil, err
		}
		v, err := s.Barrier(ctx)
		if err != nil {
			if errors.Is(err, ErrNoLeader) {
				continue // this peer has lost the leadership of Raft meanwhile
			}
			return nil, err
		}
		if kv := v.Get(key); kv != nil {
			if err := s.awaitVacant(ctx, name, kv, v.Revision()); err != nil {
				return nil, err
			}
			continue
		}
		l, err := s.tryLead(ctx, name, holder, ttl)
		if l != nil || err != nil && !errors.Is(err, ErrNoLeader) {
			return l, err
		}
	}
}

// awaitLeading returns when this peer leads Raft.
func (s *Store) awaitLeading(ctx context.Context) error {
	for {
		changed := s.consensus.LeaderChanged()
		_, reached, moved := s.machine.progress.Next()
		t := s.consensus.Term()
		if t.Here && reached == t.Number {
			return nil
		}
		if !t.Here {
			moved = nil // progress of the log does not make a follower lead
		}
		select {
		case <-changed:
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.consensus.Closed():
			return ErrClosed
		}
	}
}

// awaitVacant returns when the leadership that kv shows may be vacant: it waits for a holder in this process, and deletes the key of
// any other holder.
func (s *Store) awaitVacant(ctx context.Context, name string, kv *mvcc.KeyValue, rev int64) error {
	if s.holding(name, string(kv.Value)) == nil {
		_, err := s.Txn(ctx, mvcc.Txn{
			Compares: []mvcc.Compare{mvcc.ModRevisionIs(kv.Key, kv.ModRevision)},
			Success:  []mvcc.Op{{Type: mvcc.OpDelete, Key: kv.Key}},
		})
		if errors.Is(err, ErrNoLeader) {
			return nil
		}
		return err
	}
	w, err := s.Watch(WatchRequest{Key: kv.Key, StartRevision: rev + 1})
	if errors.Is(err, ErrCompacted) {
		return nil
	}
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := w.Next(ctx); err != nil && !errors.Is(err, ErrOverrun) {
		return err
	}
	return nil
}

// holding returns the term, or the attempt at one, that holder has in this process; nil when it has none.
func (s *Store) holding(name, holder string) *Leadership {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[name+"\x00"+holder]
}

// register makes l the term of its holder in this process. It returns the holder's other term if there is one, and nil otherwise.
func (s *Store) register(l *Leadership) *Leadership {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := l.name + "\x00" + l.holder
	if other := s.held[id]; other != nil {
		return other
	}
	s.held[id] = l
	return nil
}

func (s *Store) unregister(l *Leadership) {
	s.mu.Lock()
	delete(s.held, l.name+"\x00"+l.holder)
	s.mu.Unlock()
	close(l.ended)
}

// tryLead takes a vacant leadership. It returns nil when another holder was faster.
func (s *Store) tryLead(ctx context.Context, name, holder string, ttl time.Duration) (*Leadership, error) {
	l := &Leadership{store: s, name: name, holder: holder, ttl: ttl,
		lost: make(chan struct{}), ended: make(chan struct{}), resign: make(chan struct{})}
	// l is registered before the key exists, so that a concurrent campaign does not take the key for a dead process's.
	if other := s.register(l); other != nil {
		select {
		case <-other.ended:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	won, err := l.createKey(ctx)
	if err == nil && won {
		if err = s.consensus.Begin(); err == nil {
			go l.renew()
			return l, nil
		}
	}
	s.unregister(l)
	return nil, err
}

// createKey creates the key under a new lease. It returns false when the key exists.
func (l *Leadership) createKey(ctx context.Context) (bool, error) {
	s, key := l.store, l.key()
	lease, err := s.LeaseGrant(ctx, 0, l.ttl)
	if err != nil {
		return false, err
	}
	res, err := s.Txn(ctx, mvcc.Txn{
		Compares: []mvcc.Compare{mvcc.CreateRevisionIs(key, 0)},
		Success:  []mvcc.Op{{Type: mvcc.OpPut, Key: key, Value: []byte(l.holder), Lease: lease}},
	})
	if err == nil && res.Succeeded {
		l.lease, l.epoch = lease, res.Revision
		return true, nil
	}
	if rerr := s.LeaseRevoke(context.WithoutCancel(ctx), lease); rerr != nil {
		s.log.Debug("lease of a lost campaign cannot be revoked, it expires by itself", "leadership", l.name, "err", rerr)
	}
	return false, err
}

func (l *Leadership) key() string { return LeadershipPrefix + l.name }

// renew renews the lease until the term is over for whatever reason.
func (l *Leadership) renew() {
	s := l.store
	defer s.consensus.End()
	defer s.unregister(l)
	defer close(l.lost)
	w, err := s.Watch(WatchRequest{Key: l.key(), StartRevision: l.epoch + 1})
	if err != nil {
		return
	}
	defer w.Close()
	renewed, timer := time.Now(), time.NewTimer(l.ttl/3)
	defer timer.Stop()
	for {
		b, wake, err := w.poll()
		if err != nil || l.keyLost(b.Events) {
			return
		}
		if len(b.Events) > 0 {
			continue
		}
		select {
		case <-wake:
		case <-l.resign:
			return
		case <-s.consensus.Closed():
			return
		case <-timer.C:
			now := time.Now()
			ctx, cancel := context.WithTimeout(s.consensus.Context(), l.ttl/3)
			_, err := s.LeaseKeepAlive(ctx, l.lease)
			cancel()
			switch {
			case err == nil:
				renewed = now
			case errors.Is(err, ErrLeaseNotFound), now.Sub(renewed) >= l.ttl:
				return
			}
			timer.Reset(l.ttl / 3)
		}
	}
}

// keyLost reports whether the key no longer belongs to this term.
func (l *Leadership) keyLost(events []mvcc.Event) bool {
	for i := range events {
		if e := &events[i]; e.Type == mvcc.EventDelete || e.KV.CreateRevision != l.epoch {
			return true
		}
	}
	return false
}

// Epoch returns the number of the term; later terms have greater numbers.
func (l *Leadership) Epoch() int64 { return l.epoch }

// Fence returns the compare that every write under this leadership carries. It fails from the moment the term is over.
func (l *Leadership) Fence() mvcc.Compare { return mvcc.CreateRevisionIs(l.key(), l.epoch) }

// Lost returns a channel that closes when the term is over. The fence may fail before it closes, and at most ttl after.
func (l *Leadership) Lost() <-chan struct{} { return l.lost }

// Resign ends the term, so that the next holder can begin at once. It is no error if the term is over already.
func (l *Leadership) Resign(ctx context.Context) error {
	l.once.Do(func() { close(l.resign) })
	select {
	case <-l.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := l.store.LeaseRevoke(ctx, l.lease)
	if errors.Is(err, ErrLeaseNotFound) {
		return nil
	}
	return err
}
