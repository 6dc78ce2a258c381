package server

import (
	"context"
	"errors"
	"time"

	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/raftstore/member"
)

// startAutopilot starts what follows from the servers' gossip and records: which servers
// vote, the keys of gossip, saved addresses, connections to peers.
func (s *server) startAutopilot() error {
	gossip := s.gossip.Load()
	autopilot, err := member.NewAutopilot(member.AutopilotConfig{
		Store: s.store, Members: gossip.Members, MembersChanged: gossip.Changed, Stats: s.raftProgress, Logger: s.log,
		Removed: func(id string) {
			gossip.Forget(id)
			s.network.Drop(id)
			s.dialer.Drop(id)
		},
	})
	if err != nil {
		return err
	}
	s.parts.Keep("autopilot", autopilot.Run)
	s.parts.Keep("gossip keys", func(ctx context.Context) error {
		return cluster.FollowKeyring(ctx, s.store, func(k cluster.Keyring) error {
			if err := s.member.SetGossipKeys(k.Keys); err != nil {
				return err
			}
			if err := gossip.Rekey(k.Keys[0], k.Keys); err != nil && !errors.Is(err, member.ErrNotRunning) {
				return err
			}
			return nil
		})
	})
	s.parts.Keep("address book", s.followRecords)
	s.parts.Keep("connections", s.dropStaleConnections)
	return nil
}

// raftProgress asks another server for its Raft progress.
func (s *server) raftProgress(ctx context.Context, serverID string) (member.Stats, error) {
	conn, err := s.dialer.Dial(ctx, serverID)
	if err != nil {
		return member.Stats{}, err
	}
	a, err := clusterpb.NewClusterClient(conn).Stats(ctx, &clusterpb.StatsRequest{})
	if err != nil {
		return member.Stats{}, err
	}
	p := a.GetProgress()
	return member.Stats{Term: p.GetTerm(), LastIndex: p.GetLastIndex(), AppliedIndex: p.GetAppliedIndex(),
		LastContact: time.Duration(p.GetLastContactMs()) * time.Millisecond, Leading: a.GetLeading()}, nil
}
