package nodesetup

import (
	"context"
	"net/netip"
	"slices"

	"github.com/balsahq/balsa/cmd/balsa/daemon/lifecycle"
	"github.com/balsahq/balsa/overlay"
	"github.com/balsahq/balsa/overlay/policy"
)

// newPolicies returns the engine that enforces NetworkPolicies in the kernel of this node. It is created before the node agent,
// which asks it whether a new pod's traffic is restricted already (Admit).
func (a Node) newPolicies() (*policy.Engine, error) {
	settings, err := a.overlayConfig()
	if err != nil {
		return nil, err
	}
	return policy.New(policy.Config{
		NodeName: a.Config.NodeName, Client: a.Services, Bridge: overlay.DefaultBridge, Logger: a.Logger,
		IPv6: slices.ContainsFunc(settings.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() }),
	})
}

func (a Node) startPolicies(engine *policy.Engine) {
	a.Parts.Start("network policies", func(ctx context.Context) error {
		if !lifecycle.Await(ctx, a.APIReady) {
			return nil
		}
		return engine.Run(ctx)
	})
}
