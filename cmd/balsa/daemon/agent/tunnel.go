package agent

import (
	"github.com/balsahq/balsa/cmd/balsa/daemon/nodesetup"
	"github.com/balsahq/balsa/node/servers"
	nodetunnel "github.com/balsahq/balsa/node/tunnel"
)

// startTunnel keeps a connection to each server, by which servers reach this node.
func (a *agent) startTunnel() (err error) {
	a.back, err = nodesetup.NewTunnel(nodesetup.TunnelConfig{Node: &a.cfg.Node, NodeIP: a.nodeIP, Servers: a.serverTrust(), Metrics: a.metrics, Logger: a.log})
	if err != nil {
		return err
	}
	a.back.Update(connectTo(a.set.Servers()))
	a.parts.Keep("connections for servers", a.back.Run)
	return nil
}

// connectTo returns the list in the form of node/tunnel.
func connectTo(list []servers.Server) []nodetunnel.Server {
	out := make([]nodetunnel.Server, 0, len(list))
	for _, s := range list {
		out = append(out, nodetunnel.Server(s))
	}
	return out
}
