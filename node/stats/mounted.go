package stats

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/balsahq/balsa/fault"
)

// A driver's answer about a volume is believed for minDiskTTL. All drivers together have volumeWait for their answers; a
// volume of which nothing was heard is left out, and asked for again after silentTTL. So a driver that hangs delays the
// statistics once a minute.
const (
	volumeWait    = 2 * time.Second
	silentTTL     = time.Minute
	volumesAtOnce = 16
)

// answer is what was said of a volume; stats is nil when nothing was.
type answer struct {
	at    time.Time
	stats *statsv1.VolumeStats
}

func (a answer) fresh(now time.Time) bool {
	if a.stats == nil {
		return now.Sub(a.at) < silentTTL
	}
	return now.Sub(a.at) < minDiskTTL
}

func volumeKey(pod *v1.Pod, name string) string { return string(pod.UID) + "/" + name }

// askVolumes asks about those volumes of pods that claims and CSI drivers provide, where the last answer is too old.
func (p *Provider) askVolumes(ctx context.Context, pods []*v1.Pod, now time.Time) {
	if p.cfg.Volume == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, volumeWait)
	defer cancel()
	var asking errgroup.Group
	asking.SetLimit(volumesAtOnce)
	for _, pod := range pods {
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			if v.PersistentVolumeClaim == nil && v.Ephemeral == nil && v.CSI == nil || p.answered(volumeKey(pod, v.Name), now) {
				continue
			}
			asking.Go(fault.ContainedErr("node/statistics", func() error {
				stats, err := p.cfg.Volume(ctx, pod, v.Name)
				if err != nil {
					stats = nil // the driver's own log has the reason; a figure that cannot be had is left out
				}
				p.mu.Lock()
				defer p.mu.Unlock()
				p.asked[volumeKey(pod, v.Name)] = answer{at: now, stats: stats}
				return nil
			}))
		}
	}
	_ = asking.Wait() // a panic is counted and logged by fault; its volume has no figures
}

func (p *Provider) answered(key string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, ok := p.asked[key]
	return ok && a.fresh(now)
}

// mounted returns the last answer about a volume; nil when there is none.
func (p *Provider) mounted(pod *v1.Pod, name string) *statsv1.VolumeStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[volumeKey(pod, name)].stats
}
