package node

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/eviction"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/podworker"
)

// Times of evictions; upstream's.
const (
	evictInterval  = 10 * time.Second // what the machine has left, and the disk use of pods with such limits, is measured
	goneInterval   = time.Second      // an evicted pod is looked at
	goneTimeout    = 30 * time.Second // beyond its grace period, an evicted pod is waited for before the next one goes
	minEventPeriod = time.Second      // between two rounds that events of the kernel begin
)

// evictor evicts pods so that the node keeps running. One goroutine uses it.
type evictor struct {
	*Agent
	state eviction.State
	// leaving is the pod that was evicted last, until it has ended or the time is over.
	leaving      types.UID
	leavingUntil time.Time
}

// evictions evicts pods that use more disk than their limits allow, and pods of a node that runs short of something.
func (a *Agent) evictions(ctx context.Context) {
	e := &evictor{Agent: a}
	short := make(chan struct{}, 1)
	done := make(chan struct{})
	watching, stop := context.WithCancel(ctx)
	defer func() { stop(); <-done }()
	tell := func() {
		select {
		case short <- struct{}{}:
		default:
		}
	}
	go fault.Contained("node/memory events", func() { defer close(done); a.memoryEvents(watching, tell) })()
	tick := time.NewTicker(evictInterval)
	defer tick.Stop()
	for {
		e.relieve(ctx)
		var again <-chan time.Time
		if e.leaving != "" {
			again = time.After(goneInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			e.enforceLimits(ctx)
		case <-again:
		case <-short:
			if !pause(ctx, minEventPeriod) {
				return
			}
		}
	}
}

// enforceLimits evicts pods that use more disk than their limits allow.
func (e *evictor) enforceLimits(ctx context.Context) {
	for uid, v := range e.views() {
		if !canGo(v) || !eviction.Limited(v.Pod) {
			continue
		}
		used, err := e.stats.Pod(ctx, v.Pod)
		if err != nil {
			e.log.Debug("the disk use of a pod cannot be measured; it is tried again in the next round", "pod", podloop.PodName(v.Pod), "err", err)
			continue
		}
		if why, over := eviction.Over(v.Pod, used); over {
			if w := e.worker(uid); w != nil {
				w.Evict(podworker.Eviction{Why: podloop.Failure{Reason: eviction.Reason, Message: why}, Grace: 1})
			}
		}
	}
}

// canGo reports whether the pod takes something that its eviction would give back.
func canGo(v *podworker.View) bool {
	return !v.Stopped && !v.Failing && !podloop.IsTerminal(v.Pod.Status.Phase)
}

// relieve observes what the machine has left, sets the node's conditions, and when something is short gives up what
// belongs to no running pod, else one pod.
func (e *evictor) relieve(ctx context.Context) {
	if len(e.cfg.Eviction.Thresholds) == 0 {
		return
	}
	seen := e.observe(ctx)
	d, next := eviction.Decide(e.cfg.Eviction, e.state, seen, time.Now())
	e.state = next
	e.setPressure(d.Conditions)
	if e.isLeaving() || d.Starved == nil {
		return
	}
	t := *d.Starved
	e.recorder.Eventf(nodeRef(e.Node()), v1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim %s", t.Resource())
	if e.reclaim(ctx, t) {
		return
	}
	pods, err := e.candidates(ctx, t)
	if err != nil {
		e.log.Warn("what pods use cannot be measured; none is evicted in this round", "signal", t.Signal, "err", err)
		return
	}
	v, found := eviction.Choose(eviction.Shortage{Threshold: t, Seen: seen, SeparateImages: e.separateImages(), MaxPodGrace: e.cfg.Eviction.MaxPodGrace}, pods)
	if !found {
		e.log.Error("the node runs short and no pod can be evicted; what takes the space is not a pod, or the pods are critical", "signal", t.Signal)
		return
	}
	w := e.worker(v.Pod.UID)
	if w == nil {
		return
	}
	e.log.Warn("the node runs short; a pod is evicted", "signal", t.Signal, "pod", podloop.PodName(v.Pod), "grace", v.Grace)
	e.count.Evicted(string(t.Signal))
	w.Evict(podworker.Eviction{Why: podloop.Failure{Reason: eviction.Reason, Message: v.Message}, Grace: v.Grace, Disruption: true, Annotations: v.Annotations})
	e.leaving, e.leavingUntil = v.Pod.UID, time.Now().Add(goneTimeout+time.Duration(v.Grace)*time.Second)
}

// isLeaving reports whether the pod that was evicted last still has something to give back.
func (e *evictor) isLeaving() bool {
	if e.leaving == "" {
		return false
	}
	w := e.worker(e.leaving)
	if w != nil && !w.View().TornDown && time.Now().Before(e.leavingUntil) {
		return true
	}
	e.leaving = ""
	return false
}

// candidates measures the pods that may be evicted for t. Only a short disk makes it add up the pods' files.
func (e *evictor) candidates(ctx context.Context, t eviction.Threshold) ([]eviction.Candidate, error) {
	used, err := e.measure(ctx, t)
	if err != nil {
		return nil, err
	}
	var out []eviction.Candidate
	for uid, v := range e.views() {
		if canGo(v) {
			out = append(out, eviction.Candidate{Pod: v.Pod, Used: used[uid]})
		}
	}
	return out, nil
}

// setPressure makes the conditions known: in the Node's status at once, and to admission.
func (a *Agent) setPressure(now []v1.NodeConditionType) {
	was := a.pressure()
	if slices.Equal(was, now) {
		return
	}
	a.short.Store(&now)
	a.log.Warn("what the node runs short of has changed; the Node's conditions follow", "conditions", now)
	a.nudge()
}

// pressure returns the conditions of the node that are true because it runs short of something.
func (a *Agent) pressure() []v1.NodeConditionType {
	if p := a.short.Load(); p != nil {
		return *p
	}
	return nil
}
