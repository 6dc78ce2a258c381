package overlay

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/balsahq/balsa/overlay/host"
	"github.com/balsahq/balsa/overlay/pmtu"
	"github.com/balsahq/balsa/overlay/relay"
	"github.com/balsahq/balsa/overlay/routes"
)

// applyRoutes makes the routes to other nodes' pods; more are the parts that have to be compared because of them.
func (e *engine) applyRoutes() (more dirty, err error) {
	facts, err := e.host.Facts()
	if err != nil {
		return 0, fmt.Errorf("routes to other nodes: %w", err)
	}
	nodes, err := e.cfg.Informers.Core().V1().Nodes().Lister().List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("routes to other nodes: %w", err)
	}
	e.updateReserved(nodes, facts)
	known := make([]routes.Node, len(nodes))
	for i, n := range nodes {
		known[i] = routes.NodeOf(n)
	}
	facts.Paths = e.prober.Paths()
	before, now := e.routePlan, routes.Build(e.cfg.meshConfig(), known, facts)
	if e.cfg.ForeignPods { // routes of this program are removed, in case the other plugin replaces it
		now = &routes.Plan{}
	}
	e.routePlan = now
	e.metrics.planned(now)
	for _, f := range now.Faults {
		if !slices.Contains(before.Faults, f) {
			e.cfg.Logger.Error(f)
		}
	}
	if now.MTU != before.MTU {
		more |= mtuDirty
	}
	if !slices.Equal(now.Members, before.Members) || !slices.Equal(now.Sources, before.Sources) {
		more |= hostPortsDirty
	}
	err = e.host.Connect(now)
	e.relay.Set(now.Tunnel)
	if now.Tunnel != nil && now.Tunnel.Encrypted { // a probe cannot be encrypted, so the tunnel's MTU follows from the link's
		e.prober.Set(nil)
	} else {
		e.prober.Set(now.Tunnel)
	}
	e.tunnel.Store(int64(e.host.Tunnel()))
	if err != nil {
		return more, fmt.Errorf("routes to other nodes: %w", err)
	}
	return more, nil
}

// isTunnel reports whether a link is the tunnel, whose neighbour entries the engine keeps up to date. It may be called from
// any goroutine.
func (e *engine) isTunnel(link int) bool { return link != 0 && int64(link) == e.tunnel.Load() }

// podMTU returns the MTU of pods that are attached from now on. To pods that are there already the host sends "packet too big"
// when a packet does not fit its route.
func (e *engine) podMTU() int {
	if e.cfg.MTU > 0 {
		return e.cfg.MTU
	}
	return e.routePlan.MTU
}

// tunnelPort returns the UDP port to which only members may send; 0 where there is no tunnel.
func (c *Config) tunnelPort() uint16 {
	switch {
	case c.Mode == routes.HostGateway, c.ForeignPods:
		return 0
	case c.Mode == routes.WireGuard:
		return uint16(c.WireGuardPort)
	case c.Mode == routes.UDP:
		return uint16(c.UDPPort)
	}
	return uint16(c.VXLANPort)
}

func (e *engine) newProber() *pmtu.Prober {
	return pmtu.New(pmtu.Config{Enter: e.ns.Do, Changed: func() { e.markDirty(peersDirty) }, Logger: e.cfg.Logger})
}

func (e *engine) newRelay() *relay.Relay {
	link := func() (*os.File, error) { return host.OpenTUN(e.cfg.Relay) }
	return relay.New(relay.Config{Enter: e.ns.Do, Link: link, Key: e.cfg.Key, Logger: e.cfg.Logger})
}

// settingsInterval is the interval at which kernel settings are read, because the kernel announces no changes of them.
const settingsInterval = 5 * time.Second

// watchSettings wakes the engine when another program changed kernel settings.
func (n *Network) watchSettings(ctx context.Context) error {
	cfg := n.cfg.hostConfig(n.ns)
	cfg.Gateways = n.cfg.PodCIDRs // for their families
	tick := time.NewTicker(settingsInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if cfg.Drifted() {
				n.engine.markDirty(linksDirty)
			}
		}
	}
}
