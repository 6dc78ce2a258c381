package server

import (
	"context"

	"github.com/balsahq/balsa/cmd/balsa/daemon/nodesetup"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/control/tunnel"
	"github.com/balsahq/balsa/node/resourcemetrics"
	nodetunnel "github.com/balsahq/balsa/node/tunnel"
	"github.com/balsahq/balsa/raftstore/member"
)

// startTunnel accepts the connections that nodes keep to this server, by which it reaches them when there is no direct way.
func (s *server) startTunnel() error {
	networks, err := s.cfg.ClusterNetworks()
	if err != nil {
		return err
	}
	self := s.cfg.NodeName
	if s.cfg.DisableAgent {
		self = ""
	}
	s.tunnel, err = tunnel.New(tunnel.Config{
		Mode: tunnel.Mode(s.cfg.NodeTunnel), Self: self, Inside: !s.cfg.DisableAgent, Networks: networks,
		Identify: s.services.cluster.NodeOf, Elsewhere: s.heardElsewhere, Receive: s.reports.Receive, Logger: s.log,
	})
	if err != nil {
		return err
	}
	s.parts.Start("nodes' connections", s.tunnel.Run)
	s.parts.Keep("nodes' signs of life", s.liveness.run)
	s.port.Handle(tunnel.ALPN, s.tunnel.Serve)
	return nil
}

// startNodeTunnel keeps a connection from this machine's node to each other server. Servers without pods have no other way to
// the pods of this node.
func (s *server) startNodeTunnel(metrics *resourcemetrics.Reporter) error {
	own, err := s.pki.Peer(s.store.ServerID())
	if err != nil {
		return err
	}
	back, err := nodesetup.NewTunnel(nodesetup.TunnelConfig{Node: &s.cfg.Node, NodeIP: s.nodeIP, Metrics: metrics, Logger: s.log,
		Servers: join.ClientConfig{Roots: s.pki.Pool, Certificate: own.GetClientCertificate}})
	if err != nil {
		return err
	}
	s.parts.Keep("connections for servers", back.Run)
	s.parts.Keep("servers to connect to", func(ctx context.Context) error {
		gossip := s.gossip.Load()
		for {
			changed := gossip.Changed()
			var list []nodetunnel.Server
			for _, m := range gossip.Members() {
				if m.ServerID != s.store.ServerID() && m.APIAddr != "" && m.Leaving != member.Departing {
					list = append(list, nodetunnel.Server{ID: m.ServerID, Addr: m.APIAddr, Live: m.State == member.StateAlive})
				}
			}
			back.Update(list)
			select {
			case <-changed:
			case <-ctx.Done():
				return nil
			}
		}
	})
	return nil
}

// receiveOwn takes the reports of the node in this process, which keeps no connection to its own server.
func (s *server) receiveOwn(ctx context.Context, metrics *resourcemetrics.Reporter) error {
	for ctx.Err() == nil {
		c := metrics.Connect()
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		err := s.reports.Receive(s.cfg.NodeName, c)
		stop()
		s.log.Debug("this node's reports of what it uses have ended", "err", err)
	}
	return nil
}
