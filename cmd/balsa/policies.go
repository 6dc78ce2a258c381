package main

import (
	"context"
	"net/netip"
	"slices"

	"github.com/balsahq/balsa/overlay"
	"github.com/balsahq/balsa/overlay/policy"
)

// newPolicies is what keeps NetworkPolicies in the kernel of this node.
func (a agentParts) newPolicies() (*policy.Engine, error) {
	settings, err := overlayConfig(a.cfg, a.log)
	if err != nil {
		return nil, err
	}
	return policy.New(policy.Config{
		NodeName: a.cfg.NodeName, Client: a.services, Bridge: overlay.DefaultBridge, Logger: a.log,
		IPv6: slices.ContainsFunc(settings.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() }),
	})
}

func (a agentParts) startPolicies(engine *policy.Engine) {
	a.parts.start("network policies", func(ctx context.Context) error {
		if !await(ctx, a.apiReady) {
			return nil
		}
		return engine.Run(ctx)
	})
}
