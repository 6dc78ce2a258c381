package cluster

import (
	"context"
	"time"

	"github.com/balsahq/balsa/raftstore"
)

// recheckInterval is how often the state is read without a notification: none comes for Raft's configuration and a full disk.
const recheckInterval = 5 * time.Second

// followChanges turns changes into events until ctx ends.
func (s *Service) followChanges(ctx context.Context) error {
	var last clusterState
	timer := time.NewTimer(recheckInterval)
	defer timer.Stop()
	for {
		leader, members, nodes, keys := s.cfg.Store.LeaderChanged(), s.cfg.Members.Changed(), s.cfg.Nodes.Changed(), s.cfg.keysChanged() // before looking
		now := s.readState(last)
		s.events.Append(s.cfg.Now(), stateEvents(last, now))
		s.setHealth(now.fault == "")
		last = now
		s.useRotation()
		s.recordSelf(ctx, now)
		s.servers.publish(s.announcement(s.cfg.Store.View()))
		pause := recheckInterval
		if s.cfg.Store.Leading() && s.rotating() {
			if err := s.rotate(ctx); err != nil && ctx.Err() == nil {
				s.cfg.Logger.Warn("the rotation of the gossip key cannot continue; the server tries again", "err", err)
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

func (s *Service) readState(last clusterState) clusterState {
	store := s.cfg.Store
	now := clusterState{members: s.allMembers(store.View()), names: map[string]string{}}
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

// recordSelf writes this server's own record when it is missing or out of date: the first server has none, and addresses and
// versions change. A write that fails is tried again with the next change or after recheckInterval.
func (s *Service) recordSelf(ctx context.Context, now clusterState) {
	own := s.cfg.Store.ServerID()
	if now.leader == "" || !inConfiguration(now.servers, own) || !s.outdated(s.cfg.Store.View(), own) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recheckInterval)
	defer cancel()
	if err := Announce(ctx, s.cfg.Store, s.ownRecord(), true); err != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn("this server's record cannot be written; agents and servers do not learn its new address until the next try", "err", err)
	}
}

func (s *Service) ownRecord() MemberRecord {
	return MemberRecord{Name: s.cfg.Name, Addresses: []string{s.cfg.Address()}, Names: s.cfg.APINames, Version: s.cfg.Version, Protocol: Protocol, Joined: s.cfg.Now().UTC(), Holds: s.holds()}
}

// outdated reports whether this server's record is missing or not up to date. A removed server gets no record.
func (s *Service) outdated(v *raftstore.View, own string) bool {
	if v.Get(removedPrefix+own) != nil {
		return false
	}
	old, _, err := read[MemberRecord](v, membersPrefix+own)
	want := s.ownRecord()
	return err == nil && (old == nil || !old.sameContent(want))
}

var _ Store = (*raftstore.Store)(nil)
