package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/pluginwatcher"
)

const (
	// sweepInterval is how often volumes are looked for that are staged and that no pod uses.
	sweepInterval = time.Minute
	// firstWait and lastWait bound the pause before the Node is looked for again.
	firstWait = 50 * time.Millisecond
	lastWait  = 30 * time.Second
)

// Run unstages what no pod uses, and asks drivers for their limits anew, until ctx ends. Then it closes the connections to drivers.
func (n *Node) Run(ctx context.Context) error {
	defer n.closeAll()
	if !n.AwaitNode(ctx) {
		return nil
	}
	sweep, limits := time.Now(), time.Now()
	for {
		if !time.Now().Before(sweep) {
			_ = fault.Do("node/csi", func() { n.sweep(ctx) })
			sweep = time.Now().Add(sweepInterval)
		}
		if now := time.Now(); !now.Before(limits) {
			_ = fault.Do("node/csi", func() { n.refreshLimits(ctx, now) })
			limits = now.Add(limitsInterval)
		}
		if !pause(ctx, min(time.Until(sweep), time.Until(limits))) {
			return nil
		}
	}
}

// AwaitNode waits until the Node exists, to which drivers add what they know of it; false when ctx ended first.
func (n *Node) AwaitNode(ctx context.Context) bool {
	wait := firstWait
	for {
		_, err := n.cfg.Client.CoreV1().Nodes().Get(ctx, n.cfg.NodeName, metav1.GetOptions{})
		if err == nil {
			return true
		}
		if !pause(ctx, wait) {
			return false
		}
		wait = min(2*wait, lastWait)
	}
}

// pause waits; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Register checks what a registrar says, asks the driver itself, and tells the cluster.
func (n *Node) Register(ctx context.Context, info *registerapi.PluginInfo, endpoint string) error {
	if info.Name == "" {
		return errors.New("the driver's name is empty")
	}
	if !slices.ContainsFunc(info.SupportedVersions, func(v string) bool { return strings.HasPrefix(strings.TrimPrefix(v, "v"), "1.") }) {
		return fmt.Errorf("driver %s supports versions %v, and not 1.x", info.Name, info.SupportedVersions)
	}
	d, about, err := openDriver(ctx, info.Name, endpoint)
	if err != nil {
		return err
	}
	if err := n.publishDriver(ctx, d, about); err != nil {
		d.conn.Close()
		return err
	}
	n.mu.Lock()
	old := n.drivers[d.name]
	n.drivers[d.name] = d
	n.mu.Unlock()
	if old != nil {
		old.conn.Close()
	}
	n.log.Info("CSI driver registered", "driver", info.Name, "endpoint", endpoint)
	return nil
}

// Gone takes a driver out when its last socket has gone.
func (n *Node) Gone(ctx context.Context, info *registerapi.PluginInfo, _ string, by pluginwatcher.Replacement) {
	if by != pluginwatcher.None {
		return
	}
	n.mu.Lock()
	d := n.drivers[info.Name]
	delete(n.drivers, info.Name)
	n.mu.Unlock()
	if d != nil {
		d.conn.Close()
	}
	if err := n.withdrawDriver(ctx, info.Name); err != nil && ctx.Err() == nil {
		n.log.Warn("cannot take a CSI driver out of the CSINode", "driver", info.Name, "err", err)
	}
	n.log.Info("CSI driver gone: its volumes cannot be mounted or unmounted until it is back", "driver", info.Name)
}

func (n *Node) closeAll() {
	n.mu.Lock()
	all := slices.Collect(maps.Values(n.drivers))
	clear(n.drivers)
	n.mu.Unlock()
	for _, d := range all {
		d.conn.Close()
	}
}
