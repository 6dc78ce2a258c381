package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/membership"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore/member"
)

// startGossip joins the gossip of the servers. The keys are the saved ones: the store,
// which holds them too, has no quorum before gossip has found the other servers. Only
// the first server of a cluster takes them from its store.
func (s *server) startGossip(ctx context.Context) error {
	me := s.member.Get()
	if len(me.GossipKeys) == 0 {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		ring, err := cluster.EnsureKeyring(ctx, s.store, time.Now())
		if err != nil {
			return fmt.Errorf("cannot get the keys of gossip from the store: %w", err)
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

// runGossip returns the part that runs gossip. When it stops, it first tells the other
// servers that this one leaves on purpose.
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
		_ = g.Leave(leaveTimeout) // servers that miss the message notice the silence
		silence()
		return <-ended
	}
}

// seeds returns the gossip addresses of the other servers that this one knows.
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
