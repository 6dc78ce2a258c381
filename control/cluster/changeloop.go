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
		leader, members, nodes, keys := s.cfg.Store.LeaderChanged(), s.cfg.Members.Changed(), s.cfg.Nodes.Changed(), s.cfg.keysChanged() // before looking
		now := s.look(last)
		s.events.Append(s.cfg.Now(), differences(last, now))
		s.setHealth(now.fault == "")
		last = now
		s.useRotation()
		s.recordSelf(ctx, now)
		s.servers.publish(s.announcement(s.cfg.Store.View()))
		pause := lookAgain
		if s.cfg.Store.Leading() && s.rotating() {
			if err := s.rotate(ctx); err != nil && ctx.Err() == nil {
				s.cfg.Logger.Warn("the gossip key could not be moved on; it is tried again", "err", err)
			}
		}
		if s.cfg.Store.Leading() {
			if again := s.advanceRotation(ctx); again > 0 {
				pause = min(pause, again)
			}
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return nil
		case <-leader:
		case <-members:
		case <-nodes:
		case <-keys:
		case <-s.wake:
		case <-timer.C:
		}
	}
}

func (s *Service) look(last picture) picture {
	store := s.cfg.Store
	now := picture{members: s.everybody(store.View()), names: map[string]string{}}
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

// recordSelf keeps this server's own record true: the first server has none, and addresses and versions change. It waits
// for nobody; what does not work now is tried at the next look.
func (s *Service) recordSelf(ctx context.Context, now picture) {
	own := s.cfg.Store.ServerID()
	if now.leader == "" || !inConfiguration(now.servers, own) || !s.outdated(s.cfg.Store.View(), own) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookAgain)
	defer cancel()
	if err := Announce(ctx, s.cfg.Store, s.ownRecord(), true); err != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn("this server's record could not be written; it is tried again", "err", err)
	}
}

func (s *Service) ownRecord() MemberRecord {
	return MemberRecord{Name: s.cfg.Name, Addresses: []string{s.cfg.Address()}, Names: s.cfg.APINames, Version: s.cfg.Version, Protocol: Protocol, Joined: s.cfg.Now().UTC(), Holds: s.holds()}
}

// outdated reports whether this server's record says what is not so any more. A server that was removed has none.
func (s *Service) outdated(v *raftstore.View, own string) bool {
	if v.Get(removedPrefix+own) != nil {
		return false
	}
	old, _, err := read[MemberRecord](v, membersPrefix+own)
	want := s.ownRecord()
	return err == nil && (old == nil || !old.says(want))
}

var _ Store = (*raftstore.Store)(nil)
