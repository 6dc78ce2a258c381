package csi

import (
	"context"
	"maps"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// limitsInterval is how often it is looked whether a driver wants its limit to be asked for anew (KEP-4876), and how
// often that is done at most.
const limitsInterval = 10 * time.Second

// refreshLimits asks drivers for how many volumes the node takes, at the pace that their CSIDriver names.
func (n *Node) refreshLimits(ctx context.Context, now time.Time) {
	n.mu.Lock()
	all := slices.Collect(maps.Values(n.drivers))
	n.mu.Unlock()
	for _, d := range all {
		if err := n.refreshLimit(ctx, d, now); err != nil && ctx.Err() == nil {
			n.log.Warn("cannot read anew how many volumes of a driver this node takes; the CSINode keeps what it says", "driver", d.name, "err", err)
		}
	}
}

func (n *Node) refreshLimit(ctx context.Context, d *driver, now time.Time) error {
	about, err := n.cfg.Client.StorageV1().CSIDrivers().Get(ctx, d.name, metav1.GetOptions{})
	if err != nil || about.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return nil // without the object there is no pace
	}
	pace := max(limitsInterval, time.Duration(*about.Spec.NodeAllocatableUpdatePeriodSeconds)*time.Second)
	n.mu.Lock()
	due := d.full || now.Sub(d.asked) >= pace
	n.mu.Unlock()
	if !due {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info, err := d.node.NodeGetInfo(call, &csipb.NodeGetInfoRequest{})
	if err != nil {
		return err
	}
	n.mu.Lock()
	d.asked, d.full = now, false
	n.mu.Unlock()
	return n.publishDriver(ctx, d, info)
}

// foundFull notes that a volume of the driver did not fit, so that its limit is asked for soon.
func (n *Node) foundFull(d *driver) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d.full = true
}
