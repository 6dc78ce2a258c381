package node

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/podworker"
	"github.com/balsahq/balsa/node/shutdown"
)

// endedPoll is how often the pods of a wave are looked at.
const endedPoll = 100 * time.Millisecond

// watchShutdown ends the pods in order before the machine goes down.
func (a *Agent) watchShutdown(ctx context.Context) {
	if len(a.cfg.Shutdown) == 0 {
		<-ctx.Done()
		return
	}
	(&shutdown.Watcher{Need: shutdown.Total(a.cfg.Shutdown), Connect: a.cfg.SystemBus, Began: a.shutDown, Cancelled: a.shutdownCancelled, Logger: a.log}).Run(ctx)
}

// shutDown says that the node is not ready, takes in no pod any more, and returns when its pods have ended or their time is
// over.
func (a *Agent) shutDown(ctx context.Context) {
	a.log.Warn("the machine is about to go down; the node takes in no pods and ends those it runs")
	a.shuttingDown.Store(true)
	a.nudge()
	a.recorder.Event(nodeRef(a.Node()), v1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown event")
	var pods []*v1.Pod
	for _, v := range a.views() {
		if !v.Stopped && !podloop.IsTerminal(v.Pod.Status.Phase) {
			pods = append(pods, v.Pod)
		}
	}
	for _, wave := range shutdown.Plan(a.cfg.Shutdown, pods) {
		a.endWave(ctx, wave)
	}
}

func (a *Agent) endWave(ctx context.Context, wave shutdown.Wave) {
	for _, pod := range wave.Pods {
		if w := a.worker(pod.UID); w != nil {
			w.Evict(podworker.Eviction{Why: podloop.Failure{Reason: shutdown.Reason, Message: shutdown.Message}, Grace: shutdown.GraceOf(pod, wave.Grace), Disruption: true})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, wave.Grace)
	defer cancel()
	for !a.haveEnded(wave.Pods) {
		if !pause(ctx, endedPoll) {
			a.log.Warn("pods have not ended in the time that the shutdown gives them; it goes on", "pods", len(wave.Pods), "took", wave.Grace)
			return
		}
	}
}

// haveEnded reports whether nothing of the pods runs, and their volumes are removed.
func (a *Agent) haveEnded(pods []*v1.Pod) bool {
	for _, pod := range pods {
		if w := a.worker(pod.UID); w != nil && !w.View().TornDown {
			return false
		}
	}
	return true
}

func (a *Agent) shutdownCancelled() {
	if a.shuttingDown.Swap(false) {
		a.log.Info("the machine does not go down after all; the node takes in pods again")
		a.nudge()
	}
}
