package node

import (
	"context"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"

	"github.com/balsahq/balsa/node/cgroup"
	"github.com/balsahq/balsa/node/containerlogs"
	"github.com/balsahq/balsa/node/images"
	"github.com/balsahq/balsa/node/podworker"
)

// housekeeping does what no event asks for: logs are rotated, unused images
// removed when the disk fills up.
func (a *Agent) housekeeping(ctx context.Context) {
	logs, collections := time.NewTicker(healthInterval), time.NewTicker(gcInterval)
	defer logs.Stop()
	defer collections.Stop()
	collector := images.Collector{
		Images: a.images, Runtime: a.runtime, Pods: a.Pods, HighPercent: a.cfg.ImageGCHigh, LowPercent: a.cfg.ImageGCLow,
		Changed: a.imagesChanged, Logger: a.log,
	}
	var shares uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-logs.C:
			a.rotateLogs(ctx)
			shares = a.shareBurstable(shares)
		case <-collections.C:
			if err := collector.Collect(ctx); err != nil && ctx.Err() == nil {
				a.log.Warn("images not collected", "err", err)
				a.recorder.Event(nodeRef(a.Node()), v1.EventTypeWarning, "ImageGCFailed", err.Error())
			}
		}
	}
}

// shareBurstable gives the burstable pods together the CPU weight of their requests.
func (a *Agent) shareBurstable(was uint64) uint64 {
	var milli int64
	for _, v := range a.views() {
		if !v.Stopped && v1qos.GetPodQOS(v.Pod) == v1.PodQOSBurstable {
			r := resourcehelper.PodRequests(v.Pod, resourcehelper.PodResourcesOptions{})
			milli += r.Cpu().MilliValue()
		}
	}
	shares := cgroup.Shares(milli)
	if shares == was {
		return was
	}
	if err := a.cgroups.SetBurstable(shares); err != nil {
		a.log.Warn("CPU shares of burstable pods", "err", err)
		return was
	}
	return shares
}

// views are the published pictures of all pods.
func (a *Agent) views() map[types.UID]*podworker.View {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[types.UID]*podworker.View, len(a.workers))
	for uid, w := range a.workers {
		out[uid] = w.View()
	}
	return out
}

// rotateLogs moves logs that have grown too large out of the way.
func (a *Agent) rotateLogs(ctx context.Context) {
	for _, v := range a.views() {
		for id, c := range v.Containers {
			if !c.Running || c.LogPath == "" {
				continue
			}
			st, err := os.Stat(c.LogPath)
			switch {
			case os.IsNotExist(err):
				_ = a.runtime.ReopenContainerLog(ctx, id) // a rotation was cut short
			case err == nil && st.Size() >= a.cfg.LogMaxSize:
				if err := containerlogs.Rotate(c.LogPath, a.cfg.LogMaxFiles, func() error { return a.runtime.ReopenContainerLog(ctx, id) }); err != nil && ctx.Err() == nil {
					a.log.Warn("log not rotated", "path", c.LogPath, "err", err)
				}
			}
		}
	}
}
