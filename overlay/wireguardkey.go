package overlay

import (
	"context"
	"time"

	"github.com/balsahq/balsa/overlay/routes"
)

// publishKey keeps the annotation of this node's Node up to date: its public key in mode WireGuard, else no annotation.
func (n *Network) publishKey(ctx context.Context) error {
	want := ""
	if n.cfg.Mode == routes.WireGuard && !n.cfg.ForeignPods {
		want = routes.Key(n.cfg.Key.PublicKey().Bytes()).String()
	}
	again := time.NewTimer(0)
	defer again.Stop()
	failed, delay := "", retry
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-n.nodeSeen:
		case <-again.C:
		}
		node, err := n.cfg.Informers.Core().V1().Nodes().Lister().Get(n.cfg.NodeName)
		if err != nil || n.cfg.Publish == nil || node.Annotations[routes.KeyAnnotation] == want {
			continue // a Node that is not registered yet sends a token when it is
		}
		if err := n.cfg.Publish(ctx, routes.KeyAnnotation, want); err != nil && ctx.Err() == nil {
			if text := err.Error(); text != failed {
				failed = text
				n.cfg.Logger.Warn("cannot publish this node's WireGuard key; other nodes do not reach its pods until it is published", "err", err)
			}
			again.Reset(delay)
			delay = min(2*delay, retryMost)
			continue
		}
		failed, delay = "", retry
	}
}
