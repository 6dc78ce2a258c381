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

// connect makes the ways to other nodes' pods; more is what changes with them.
func (e *engine) connect() (more touched, err error) {
	facts, err := e.host.Facts()
	if err != nil {
		return 0, fmt.Errorf("ways to other nodes: %w", err)
	}
	nodes, err := e.cfg.Informers.Core().V1().Nodes().Lister().List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("ways to other nodes: %w", err)
	}
	e.reserve(nodes, facts)
	known := make([]routes.Node, len(nodes))
	for i, n := range nodes {
		known[i] = routes.NodeOf(n)
	}
	facts.Paths = e.prober.Paths()
	before, now := e.ways, routes.Build(e.cfg.meshConfig(), known, facts)
	if e.cfg.ForeignPods { // what we made before others took over goes
		now = &routes.Plan{}
	}
	e.ways = now
	for _, f := range now.Faults {
		if !slices.Contains(before.Faults, f) {
			e.cfg.Logger.Error(f)
		}
	}
	if now.MTU != before.MTU {
		more |= mtuTouched
	}
	if !slices.Equal(now.Members, before.Members) {
		more |= servicesTouched
	}
	err = e.host.Connect(now)
	e.relay.Set(now.Tunnel)
	if now.Tunnel != nil && now.Tunnel.Encrypted { // its packets cannot be made by others: its MTU is what the link leaves
		e.prober.Set(nil)
	} else {
		e.prober.Set(now.Tunnel)
	}
	e.tunnel.Store(int64(e.host.Tunnel()))
	if err != nil {
		return more, fmt.Errorf("ways to other nodes: %w", err)
	}
	return more, nil
}

// concerns tells whether the neighbours on a link are ours to keep. It may be called at any time.
func (e *engine) concerns(link int) bool { return link != 0 && int64(link) == e.tunnel.Load() }

// podMTU is the MTU of pods that are attached from now on. Those there already are told by the host when a packet is too
// large for the way it takes.
func (e *engine) podMTU() int {
	if e.cfg.MTU > 0 {
		return e.cfg.MTU
	}
	return e.ways.MTU
}

// tunnelPort is the UDP port that only members may send to; 0 where there is no tunnel.
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
	return pmtu.New(pmtu.Config{Enter: e.ns.Do, Changed: func() { e.note(peersTouched) }, Logger: e.cfg.Logger})
}

func (e *engine) newRelay() *relay.Relay {
	link := func() (*os.File, error) { return host.OpenTUN(e.cfg.Relay) }
	return relay.New(relay.Config{Enter: e.ns.Do, Link: link, Key: e.cfg.Key, Logger: e.cfg.Logger})
}

// settingsLook is how often settings are looked at that the kernel tells nobody of.
const settingsLook = 5 * time.Second

// watchSettings tells the engine of kernel settings that somebody changed.
func (n *Network) watchSettings(ctx context.Context) error {
	cfg := n.cfg.hostConfig(n.ns)
	cfg.Gateways = n.cfg.PodCIDRs // for their families
	tick := time.NewTicker(settingsLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if cfg.Drifted() {
				n.engine.note(linksTouched)
			}
		}
	}
}
