package nodesetup

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/control/tunnel"
	"github.com/balsahq/balsa/control/tunnel/mux"
	"github.com/balsahq/balsa/node/resourcemetrics"
	nodetunnel "github.com/balsahq/balsa/node/tunnel"
)

// TunnelConfig configures the connections that a node keeps to servers.
type TunnelConfig struct {
	Node    *config.Node
	NodeIP  netip.Addr
	Servers join.ClientConfig // the CAs of servers, and the certificate for them: see join.ServerTLS
	Metrics *resourcemetrics.Reporter
	Logger  *slog.Logger
}

// NewTunnel returns the agent of the tunnel: it keeps a connection to each server, over which servers reach this node, its
// pods and Services when they have no direct way. It joins node/tunnel, which decides what may be reached, with
// control/tunnel/mux, which carries the streams.
func NewTunnel(c TunnelConfig) (*nodetunnel.Agent, error) {
	networks, err := c.Node.ClusterNetworks()
	if err != nil {
		return nil, err
	}
	rules := nodetunnel.Rules{Kubelet: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(c.Node.KubeletPort)), Networks: networks, Metrics: c.Metrics.Connect}
	for _, ip := range IPs(c.Node, c.NodeIP) {
		if a, ok := netip.AddrFromSlice(ip); ok {
			rules.Own = append(rules.Own, a.Unmap())
		}
	}
	settings := join.ServerTLS(c.Servers, tunnel.ALPN)
	return nodetunnel.New(nodetunnel.Config{
		Rules: rules, Logger: c.Logger,
		Connect: func(ctx context.Context, raw net.Conn) (net.Conn, error) {
			conn := tls.Client(raw, settings)
			if err := conn.HandshakeContext(ctx); err != nil {
				return nil, err
			}
			if conn.ConnectionState().NegotiatedProtocol != tunnel.ALPN {
				return nil, fmt.Errorf("the server does not speak %s", tunnel.ALPN)
			}
			return conn, nil
		},
		Carry: func(ctx context.Context, conn net.Conn, dial func(context.Context, string) (net.Conn, error), welcome func()) error {
			return mux.Carry(ctx, mux.CarryConfig{Conn: conn, Dial: dial, Welcome: welcome})
		},
	})
}
