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
	"github.com/balsahq/balsa/node/podworker"
)

// housekeeping does the periodic work that no event starts: it rotates logs, removes unused images when the disk fills up, and
// keeps the CPU weight of burstable pods.
func (a *Agent) housekeeping(ctx context.Context) {
	logs, collections := time.NewTicker(healthInterval), time.NewTicker(gcInterval)
	defer logs.Stop()
	defer collections.Stop()
	var shares uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-logs.C:
			a.rotateLogs(ctx)
			shares = a.shareBurstable(shares)
			if a.formerVolumes.Load() {
				a.removeFormerVolumes(ctx)
			}
			if a.formerClaims.Load() {
				a.unprepareFormer(ctx)
			}
		case <-collections.C:
			if err := a.collector.Collect(ctx); err != nil && ctx.Err() == nil {
				a.log.Warn("unused images cannot be removed; the file system stays as full as it is until the next round", "err", err)
				a.recorder.Event(nodeRef(a.Node()), v1.EventTypeWarning, "ImageGCFailed", err.Error())
			}
		}
	}
}

// shareBurstable sets the CPU weight of all burstable pods together to the sum of their requests, unless it is was. It returns
// the weight that is set.
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
		a.log.Warn("the CPU weight of burstable pods cannot be set; the former one stays until the next round", "err", err)
		return was
	}
	return shares
}

// views returns the newest View of each pod.
func (a *Agent) views() map[types.UID]*podworker.View {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[types.UID]*podworker.View, len(a.workers))
	for uid, w := range a.workers {
		out[uid] = w.View()
	}
	return out
}

// rotateLogs rotates the logs that have reached their maximum size.
func (a *Agent) rotateLogs(ctx context.Context) {
	for _, v := range a.views() {
		for id, c := range v.Containers {
			if !c.Running || c.LogPath == "" {
				continue
			}
			st, err := os.Stat(c.LogPath)
			switch {
			case os.IsNotExist(err):
				_ = a.runtime.ReopenContainerLog(ctx, id) // an earlier rotation ended after the rename
			case err == nil && st.Size() >= a.cfg.LogMaxSize:
				if err := containerlogs.Rotate(c.LogPath, a.cfg.LogMaxFiles, func() error { return a.runtime.ReopenContainerLog(ctx, id) }); err != nil && ctx.Err() == nil {
					a.log.Warn("a container's log cannot be rotated; it grows until the next round", "path", c.LogPath, "err", err)
				}
			}
		}
	}
}
