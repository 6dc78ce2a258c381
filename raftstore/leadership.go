package raftstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// LeadershipPrefix is where leaderships are kept: LeadershipPrefix + name holds
// the holder, under the holder's lease.
const LeadershipPrefix = "/balsa/leadership/"

// Leadership is one term of one holder. Its epoch is the create revision of
// the key, so it grows from term to term, and a write that carries Fence is
// refused by the state itself once the term is over, whatever clocks say and
// however long the holder was paused.
type Leadership struct {
	store  *Store
	name   string
	holder string
	epoch  int64
	lease  mvcc.LeaseID
	ttl    time.Duration

	lost   chan struct{} // closed when the term is over
	ended  chan struct{} // closed when nothing of it runs any more
	resign chan struct{} // closed to end the renewals
	once   sync.Once     // closes resign
}

// Campaign blocks until holder leads name, or ctx ends. The leadership is lost
// when it was not renewed for ttl; renewing needs no care of the caller's.
//
// A leadership goes to the peer that leads Raft, which takes it from a holder
// elsewhere at once: that holder died, or is cut off, or has work that is better
// done here, and its fence makes sure that it does none any more. Holders in one
// process wait for each other.
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
				continue // it led a moment ago
			}
			return nil, err
		}
		if kv := v.Get(key); kv != nil {
			if err := s.vacate(ctx, name, kv, v.Revision()); err != nil {
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
			moved = nil // what others write does not make this peer lead
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

// vacate returns when the leadership kv shows may be vacant: it waits for a
// holder of this process and takes the key from any other.
func (s *Store) vacate(ctx context.Context, name string, kv *mvcc.KeyValue, rev int64) error {
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

// holding is the term, or the attempt at one, that holder has in this process.
func (s *Store) holding(name, holder string) *Leadership {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[name+"\x00"+holder]
}

// register makes l the term of its holder in this process, or returns the one
// there is.
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

// tryLead takes a vacant leadership, or returns nil when somebody was faster.
func (s *Store) tryLead(ctx context.Context, name, holder string, ttl time.Duration) (*Leadership, error) {
	l := &Leadership{store: s, name: name, holder: holder, ttl: ttl,
		lost: make(chan struct{}), ended: make(chan struct{}), resign: make(chan struct{})}
	// Before the key exists, so that a campaign beside this one does not take
	// the key for a dead process's.
	if other := s.register(l); other != nil {
		select {
		case <-other.ended:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	won, err := l.take(ctx)
	if err == nil && won {
		if err = s.consensus.Begin(); err == nil {
			go l.hold()
			return l, nil
		}
	}
	s.unregister(l)
	return nil, err
}

// take creates the key under a new lease.
func (l *Leadership) take(ctx context.Context) (bool, error) {
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
		s.log.Debug("lease of a lost campaign is left to expire", "leadership", l.name, "error", rerr)
	}
	return false, err
}

func (l *Leadership) key() string { return LeadershipPrefix + l.name }

// hold renews the lease until the term is over for whatever reason.
func (l *Leadership) hold() {
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
		if err != nil || l.overthrown(b.Events) {
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

// overthrown reports whether the key stopped being this term's.
func (l *Leadership) overthrown(events []mvcc.Event) bool {
	for i := range events {
		if e := &events[i]; e.Type == mvcc.EventDelete || e.KV.CreateRevision != l.epoch {
			return true
		}
	}
	return false
}

// Epoch is the number of the term; later terms have greater ones.
func (l *Leadership) Epoch() int64 { return l.epoch }

// Fence is the compare that every write made under this leadership carries. It
// stops holding the moment the term is over.
func (l *Leadership) Fence() mvcc.Compare { return mvcc.CreateRevisionIs(l.key(), l.epoch) }

// Lost is closed when the term is over. It may lag behind the fence, never the
// other way round by more than the ttl.
func (l *Leadership) Lost() <-chan struct{} { return l.lost }

// Resign ends the term and lets the next holder in at once. A term that is over
// already is no error.
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
