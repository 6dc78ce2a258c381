package node

import (
	"cmp"
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/node/admission"
	"github.com/balsahq/balsa/node/cpumanager"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/podworker"
)

// resizeRetry is how often resizes that wait are judged again when no event says that there may be room.
const resizeRetry = 3 * time.Minute

// resizes answers the pods that ask for other resources than they have.
func (a *Agent) resizes(ctx context.Context) {
	tick := time.NewTicker(resizeRetry)
	defer tick.Stop()
	for {
		for a.judgeResizes() { // one that gives resources back may have made room for another
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-a.resizeNudge:
		}
	}
}

// resizeAsked has the resizes judged again.
func (a *Agent) resizeAsked() {
	select {
	case a.resizeNudge <- struct{}{}:
	default:
	}
}

// published follows a worker's new View.
func (a *Agent) published(uid types.UID, v *podworker.View) {
	a.containersChanged(uid, v)
	if v.Stopped {
		a.resizeAsked()
	}
}

// judgeResizes answers each pod once. It reports whether a pod has given resources back.
func (a *Agent) judgeResizes() (gaveBack bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var asks []admission.Resize
	for _, w := range a.workers {
		asked, g := w.Asked(), w.Grant()
		switch {
		case g.Allocated.Are(asked) && g.Asked.Are(asked) && g.Pending == nil:
		case takesRoom(w):
			asks = append(asks, admission.Resize{Asked: asked, Allocated: g.Allocated.On(asked)})
		}
	}
	admission.SortResizes(asks)
	for _, r := range asks {
		given := a.judgeResize(a.workers[r.Asked.UID], r.Asked)
		gaveBack = gaveBack || given && r.Shrinks()
	}
	return gaveBack
}

// judgeResize answers one pod, and reports whether it has got what it asks for. It is called with Agent.mu held.
func (a *Agent) judgeResize(w *podworker.Worker, asked *v1.Pod) bool {
	was := w.Grant()
	g := &podloop.Grant{Asked: podloop.ResourcesOf(asked), Allocated: was.Allocated, Generation: was.Generation}
	if !was.Allocated.Are(asked) {
		refused := admission.CheckResize(a.admissionInput(asked))
		if a.cfg.Allocation.CPUs == cpumanager.Static {
			refused = cmp.Or(admission.CheckPinned(admission.Resize{Asked: asked, Allocated: was.Allocated.On(asked)}), refused)
		}
		if refused != nil {
			g.Pending = &podloop.Pending{Reason: refused.Reason, Message: refused.Message, Generation: asked.Generation}
		} else {
			g.Allocated, g.Generation = g.Asked, asked.Generation
		}
	}
	if p, q := was.Pending, g.Pending; p != nil && q != nil && *p == *q && was.Asked.Are(asked) {
		return false
	}
	w.Allot(g)
	return g.Pending == nil
}
