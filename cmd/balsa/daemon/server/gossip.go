package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/membership"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

// startGossip takes part in gossip with the keys that the store holds; a server
// that cannot read its store yet has kept them.
func (s *server) startGossip(ctx context.Context) error {
	me := s.member.Get()
	if len(me.GossipKeys) == 0 {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		ring, err := cluster.EnsureKeyring(ctx, s.store, time.Now())
		if err != nil {
			return fmt.Errorf("gossip keys: %w", err)
		}
		if err := s.member.SetGossipKeys(ring.Keys); err != nil {
			return err
		}
		me = s.member.Get()
	}
	gossip, err := newGossip(s.cfg, member.Meta{
		ServerID: me.ServerID, Role: member.RoleServer, APIAddr: s.address(), Version: s.cfg.Version,
		Protocol: cluster.Protocol, Generation: me.Generation, ClusterID: me.ClusterID,
	}, s.nodeIP, me.GossipKeys, func() []string { return seeds(s.member.Get()) }, s.log)
	if err != nil {
		return err
	}
	gossip.Remember(membership.AddressBook(me.Servers))
	s.gossip.Store(gossip)
	s.parts.Start("gossip", runGossip(gossip))
	return nil
}

func newGossip(cfg *config.Server, meta member.Meta, ip netip.Addr, keys [][]byte, seeds func() []string, log *slog.Logger) (*member.Gossip, error) {
	bind := cfg.BindAddress
	if addr, err := netip.ParseAddr(bind); err == nil && addr.IsUnspecified() {
		bind = ""
	}
	return member.New(member.Config{
		Name: cfg.NodeName, Meta: meta, BindAddr: bind, BindPort: cfg.GossipPort, AdvertiseAddr: ip.String(),
		Keys: keys, Seeds: seeds, Logger: log,
	})
}

// runGossip is a part that says goodbye before it goes silent.
func runGossip(g *member.Gossip) func(context.Context) error {
	return func(ctx context.Context) error {
		running, silence := context.WithCancel(context.WithoutCancel(ctx))
		defer silence()
		ended := make(chan error, 1)
		go func() { ended <- fault.Contain("gossip", func() error { return g.Run(running) }) }()
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
		}
		_ = g.Leave(farewell) // who does not hear it finds out
		silence()
		return <-ended
	}
}

// seeds are the gossip addresses of the servers that are known.
func seeds(r join.Result) []string {
	var out []string
	if r.GossipAddr != "" {
		out = append(out, r.GossipAddr)
	}
	for id, addr := range membership.AddressBook(r.Servers) {
		host, _, err := net.SplitHostPort(addr)
		if err != nil || id == r.ServerID {
			continue
		}
		out = append(out, net.JoinHostPort(host, strconv.Itoa(r.Settings.GossipPort)))
	}
	return out
}

// startMembers keeps what follows from who is alive and what the store says of
// the members: connections, addresses, keys, votes.
func (s *server) startMembers() error {
	gossip := s.gossip.Load()
	autopilot, err := member.NewAutopilot(member.AutopilotConfig{
		Store: s.store, Members: gossip.Members, MembersChanged: gossip.Changed, Stats: s.stats, Logger: s.log,
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
	s.parts.Keep("connections", s.followMembers)
	return nil
}

// stats asks another server how far it is.
func (s *server) stats(ctx context.Context, serverID string) (member.Stats, error) {
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

// followRecords keeps what follows from the servers' records in the store: the
// addresses, for a start at which nobody else is heard, and the kubeconfig.
func (s *server) followRecords(ctx context.Context) error {
	for {
		v := s.store.View()
		records := cluster.Records(v)
		s.recorded.fire()
		book := map[string]string{}
		for id, rec := range records {
			if len(rec.Addresses) > 0 {
				book[id] = rec.Addresses[0]
			}
		}
		if len(book) > 0 {
			s.gossip.Load().Remember(book)
			if err := s.member.SetServers(book); err != nil {
				s.log.Warn("addresses of the servers are not kept", "err", err)
			}
			if err := s.writeKubeconfig(records); err != nil {
				s.log.Warn("the kubeconfig is as it was", "err", err)
			}
		}
		w, err := s.store.Watch(raftstore.WatchRequest{Key: cluster.MembersPrefix, RangeEnd: raftstore.PrefixEnd(cluster.MembersPrefix), StartRevision: v.Revision() + 1})
		if err == nil {
			_, err = w.Next(ctx)
			w.Close()
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.Is(err, raftstore.ErrOverrun) && !errors.Is(err, raftstore.ErrCompacted):
			return err
		}
	}
}

// followMembers lets go of connections to servers that are gone or elsewhere.
func (s *server) followMembers(ctx context.Context) error {
	gossip, where := s.gossip.Load(), map[string]string{}
	for {
		changed := gossip.Changed()
		for _, m := range gossip.Members() {
			if m.Role != member.RoleServer || m.ServerID == s.store.ServerID() {
				continue
			}
			now := m.APIAddr
			if m.State != member.StateAlive {
				now = ""
			}
			if before, known := where[m.ServerID]; known && before != now {
				s.network.Drop(m.ServerID)
				s.dialer.Drop(m.ServerID)
			}
			where[m.ServerID] = now
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return s.dialer.Close()
		}
	}
}
