package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"

	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/control/tunnel"
	"github.com/balsahq/balsa/control/tunnel/mux"
	"github.com/balsahq/balsa/node/servers"
	nodetunnel "github.com/balsahq/balsa/node/tunnel"
	"github.com/balsahq/balsa/raftstore/member"
)

// clusterNetworks are those of pods and Services.
func (c *config) clusterNetworks() ([]netip.Prefix, error) {
	pods, err := prefixes(c.ClusterCIDR)
	if err != nil {
		return nil, err
	}
	services, err := prefixes(c.ServiceCIDR)
	return slices.Concat(pods, services), err
}

// takeNodes lets nodes keep connections to this server.
func (s *server) takeNodes() error {
	networks, err := s.cfg.clusterNetworks()
	if err != nil {
		return err
	}
	self := s.cfg.NodeName
	if s.cfg.DisableAgent {
		self = ""
	}
	s.tunnel, err = tunnel.New(tunnel.Config{
		Mode: tunnel.Mode(s.cfg.NodeTunnel), Self: self, Inside: !s.cfg.DisableAgent, Networks: networks,
		Identify: s.services.cluster.NodeOf, Elsewhere: s.elsewhere, Logger: s.log,
	})
	if err != nil {
		return err
	}
	s.parts.start("nodes' connections", s.tunnel.Run)
	s.parts.keep("nodes' signs of life", s.liveness.run)
	s.port.Handle(tunnel.ALPN, s.tunnel.Serve)
	return nil
}

// newWayBack is what keeps this node's connections to servers.
func newWayBack(cfg *config, nodeIP netip.Addr, roots *x509.CertPool, certificate func(*tls.CertificateRequestInfo) (*tls.Certificate, error), log *slog.Logger) (*nodetunnel.Agent, error) {
	networks, err := cfg.clusterNetworks()
	if err != nil {
		return nil, err
	}
	rules := nodetunnel.Rules{Kubelet: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(cfg.KubeletPort)), Networks: networks}
	for _, ip := range cfg.nodeIPs(nodeIP) {
		if a, ok := netip.AddrFromSlice(ip); ok {
			rules.Own = append(rules.Own, a.Unmap())
		}
	}
	settings := join.ServerTLS(join.ClientConfig{Roots: roots, Certificate: certificate}, tunnel.ALPN)
	return nodetunnel.New(nodetunnel.Config{
		Rules: rules, Logger: log,
		Connect: func(ctx context.Context, raw net.Conn) (net.Conn, error) {
			c := tls.Client(raw, settings)
			if err := c.HandshakeContext(ctx); err != nil {
				return nil, err
			}
			if c.ConnectionState().NegotiatedProtocol != tunnel.ALPN {
				return nil, fmt.Errorf("the server does not speak %s", tunnel.ALPN)
			}
			return c, nil
		},
		Carry: func(ctx context.Context, c net.Conn, dial func(context.Context, string) (net.Conn, error), welcome func()) error {
			return mux.Carry(ctx, mux.CarryConfig{Conn: c, Dial: dial, Welcome: welcome})
		},
	})
}

// startWayBack keeps a connection to each server.
func (a *agent) startWayBack(roots *x509.CertPool) (err error) {
	a.back, err = newWayBack(a.cfg, a.nodeIP, roots, a.creds.Client.GetClientCertificate, a.log)
	if err != nil {
		return err
	}
	a.back.Update(connectTo(a.set.Servers()))
	a.parts.keep("connections for servers", a.back.Run)
	return nil
}

// connectTo is a list of servers as node/tunnel has it.
func connectTo(list []servers.Server) []nodetunnel.Server {
	out := make([]nodetunnel.Server, 0, len(list))
	for _, s := range list {
		out = append(out, nodetunnel.Server(s))
	}
	return out
}

// startWayBack keeps a connection to each other server, some of which may run no pods and so have no way of their own to
// this one's.
func (s *server) startWayBack() error {
	own, err := s.pki.Peer(s.store.ServerID())
	if err != nil {
		return err
	}
	back, err := newWayBack(s.cfg, s.nodeIP, s.pki.Pool(), own.GetClientCertificate, s.log)
	if err != nil {
		return err
	}
	s.parts.keep("connections for servers", back.Run)
	s.parts.keep("servers to connect to", func(ctx context.Context) error {
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
