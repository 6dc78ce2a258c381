package node

import (
	"context"
	"time"

	"github.com/balsahq/balsa/node/eviction"
	"github.com/balsahq/balsa/node/podloop"
)

// evictInterval is how often pods with limits of disk are measured.
const evictInterval = 10 * time.Second

// evictions ends pods that take more of the disk than they may.
func (a *Agent) evictions(ctx context.Context) {
	tick := time.NewTicker(evictInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for uid, v := range a.views() {
			if v.Stopped || podloop.IsTerminal(v.Pod.Status.Phase) || !eviction.Limited(v.Pod) {
				continue
			}
			used, err := a.stats.Pod(ctx, v.Pod)
			if err != nil {
				a.log.Debug("pod not measured", "pod", podloop.PodName(v.Pod), "err", err)
				continue
			}
			if why, over := eviction.Over(v.Pod, used); over {
				if w := a.worker(uid); w != nil {
					w.Evict(podloop.Failure{Reason: eviction.Reason, Message: why})
				}
			}
		}
	}
}
