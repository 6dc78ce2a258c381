package overlay

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/balsahq/balsa/overlay/mesh"
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
	known := make([]mesh.Node, len(nodes))
	for i, n := range nodes {
		known[i] = mesh.NodeOf(n)
	}
	before, now := e.ways, mesh.Build(e.cfg.meshConfig(), known, facts)
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
	if c.Mode == mesh.HostGateway {
		return 0
	}
	return uint16(c.VXLANPort)
}
