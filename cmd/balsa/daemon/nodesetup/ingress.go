package nodesetup

import (
	"context"

	"github.com/balsahq/balsa/cmd/balsa/daemon/lifecycle"
	"github.com/balsahq/balsa/overlay/ingress"
)

// startIngress serves Ingresses and Gateways on this node.
func (a Node) startIngress(network ingress.Config) error {
	if !a.Config.Ingress.Enabled {
		return nil
	}
	network.NodeName, network.Client, network.Rest, network.Logger = a.Config.NodeName, a.Client, a.Rest, a.Logger
	network.HTTPPort, network.HTTPSPort = uint16(a.Config.Ingress.HTTPPort), uint16(a.Config.Ingress.HTTPSPort)
	network.MaxConnections = a.Config.Ingress.MaxConnections
	served, err := ingress.NewNode(network)
	if err != nil {
		return err
	}
	a.Parts.Start("ingress", func(ctx context.Context) error {
		if !lifecycle.Await(ctx, a.APIReady) {
			return nil
		}
		return served.Run(ctx)
	})
	return nil
}
