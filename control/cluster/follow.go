package cluster

import (
	"context"
	"time"

	"github.com/balsahq/balsa/raftstore"
)

const (
	// lookAgain: the store says when the leader changes and gossip when members do; the configuration and a full disk
	// are looked at this often as well.
	lookAgain = 5 * time.Second
)

// follow turns changes into events until ctx ends.
func (s *Service) follow(ctx context.Context) error {
	var last picture
	timer := time.NewTimer(lookAgain)
	defer timer.Stop()
	for {
		leader, members := s.cfg.Store.LeaderChanged(), s.cfg.Members.Changed() // before looking
		now := s.look(last)
		s.events.add(s.cfg.Now(), differences(last, now))
		s.setHealth(now.fault == "")
		last = now
		if s.cfg.Store.Leading() && s.rotating() {
			if err := s.rotate(ctx); err != nil && ctx.Err() == nil {
				s.cfg.Logger.Warn("the gossip key could not be moved on; it is tried again", "error", err)
			}
		}
		timer.Reset(lookAgain)
		select {
		case <-ctx.Done():
			return nil
		case <-leader:
		case <-members:
		case <-timer.C:
		}
	}
}

func (s *Service) look(last picture) picture {
	store := s.cfg.Store
	now := picture{members: s.cfg.Members.Members(), names: map[string]string{}}
	now.leader, _ = store.Leader()
	var err error
	if now.servers, err = store.Servers(); err != nil {
		now.servers = last.servers
	}
	for id, rec := range Records(store.View()) {
		now.names[id] = rec.Name
	}
	now.names[store.ServerID()] = s.cfg.Name
	if err := store.Err(); err != nil {
		now.fault = err.Error()
	}
	return now
}

func (s *Service) rotating() bool {
	ring, _, err := read[Keyring](s.cfg.Store.View(), gossipKey)
	return err == nil && ring != nil && ring.Target != nil
}

var _ Store = (*raftstore.Store)(nil)
