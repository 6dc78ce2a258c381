package node

import (
	"context"
	"time"

	"github.com/balsahq/balsa/node/eviction"
	"github.com/balsahq/balsa/node/podloop"
)

// evictInterval is how often the disk use of pods with such limits is measured.
const evictInterval = 10 * time.Second

// evictions evicts pods that use more disk than their limits allow.
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
				a.log.Debug("the disk use of a pod cannot be measured; it is tried again in the next round", "pod", podloop.PodName(v.Pod), "err", err)
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
