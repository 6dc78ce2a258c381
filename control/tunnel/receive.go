package tunnel

import (
	"context"
	"fmt"
	"time"
)

// resourceMetrics is the target with which a server requests a node's reports; node/tunnel has the same constant.
const resourceMetrics = "resource-metrics"

// receive passes a node's reports on until its connection is over.
func (t *Tunnel) receive(n *node) {
	for {
		err := t.receiveOnce(n)
		t.cfg.Logger.Debug("a node's reports of what it uses have ended", "node", n.name, "err", err, "pause", t.cfg.ReceiveAgain)
		timer := time.NewTimer(t.cfg.ReceiveAgain)
		select {
		case <-timer.C:
		case <-n.Done():
			timer.Stop()
			return
		}
	}
}

func (t *Tunnel) receiveOnce(n *node) error {
	ctx, cancel := context.WithTimeout(context.Background(), t.cfg.Patience)
	defer cancel()
	c, err := n.Open(ctx, resourceMetrics)
	if err != nil {
		return fmt.Errorf("node %s: %w", n.name, err)
	}
	return t.cfg.Receive(n.name, c)
}
