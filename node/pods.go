package node

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/podworker"
	"github.com/balsahq/balsa/node/probe"
	"github.com/balsahq/balsa/node/staticpod"
)

// podSeen handles a version of a pod from the API.
func (a *Agent) podSeen(ctx context.Context, o any) {
	fault.Point("node/events")
	pod, ok := o.(*v1.Pod)
	if !ok {
		return
	}
	if pod.Annotations[staticpod.AnnotationMirror] != "" {
		a.mirrorSeen(pod)
		return
	}
	a.follow(ctx, pod)
}

// follow hands a pod to its worker. It makes and starts the worker of a new pod.
func (a *Agent) follow(ctx context.Context, pod *v1.Pod) {
	w, made := a.enlist(pod, false)
	if w == nil {
		a.readNode(ctx) // the Node may have changed, for example its labels, and the informer not seen it yet
		w, made = a.enlist(pod, true)
	}
	if !made {
		w.Update(pod)
		return
	}
	if f := w.Rejection(); f != nil {
		a.recorder.Event(pod, v1.EventTypeWarning, f.Reason, strings.TrimPrefix(f.Message, podworker.RejectedPrefix))
	}
	a.begin(ctx, w)
}

// enlist returns the worker of a pod, and whether it made one. When the node refuses the pod it returns nil, or with final a
// worker that fails the pod.
func (a *Agent) enlist(pod *v1.Pod, final bool) (w *podworker.Worker, made bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.workers[pod.UID]; w != nil {
		return w, false
	}
	w = podworker.New(a.host, pod)
	if o := a.adopted[pod.UID]; o != nil {
		delete(a.adopted, pod.UID)
		w.Adopt(o)
	} else if pod.DeletionTimestamp == nil && !podloop.IsTerminal(pod.Status.Phase) {
		refused := a.admit(w.Allocated())
		if refused != nil && !final {
			return nil, false
		}
		w.Reject(refused)
	}
	a.workers[pod.UID] = w
	return w, true
}

// begin runs a worker in a goroutine and removes it from the set when nothing is left of its pod.
func (a *Agent) begin(ctx context.Context, w *podworker.Worker) {
	a.wg.Add(1)
	go func() {
		defer a.wg.Done()
		fault.KeepDo(ctx, podworker.Unit, w.Run)
		if ctx.Err() == nil {
			a.mu.Lock()
			delete(a.workers, w.UID())
			a.mu.Unlock()
			a.resizeAsked()
		}
	}()
}

func (a *Agent) podGone(o any) {
	if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = d.Obj
	}
	if pod, ok := o.(*v1.Pod); ok {
		if w := a.worker(pod.UID); w != nil {
			w.Leave()
			a.resizeAsked()
		} else if pod.Annotations[staticpod.AnnotationMirror] != "" {
			a.nudgeStatic()
		}
	}
}

func (a *Agent) worker(uid types.UID) *podworker.Worker {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.workers[uid]
}

// volumeSourceFound tells a pod's worker that an object of its volumes appeared or changed; called by the volume manager.
func (a *Agent) volumeSourceFound(uid types.UID) {
	if w := a.worker(uid); w != nil {
		w.SourceFound()
	}
}

// probed hands the result of a probe to the pod's worker; called by the probe manager.
func (a *Agent) probed(uid types.UID, container string, kind probe.Kind, r probe.Result, _ string) {
	if w := a.worker(uid); w != nil {
		w.Probed(container, kind, r)
	}
}

func (a *Agent) allServices() ([]*v1.Service, error) {
	if !a.cfg.Informers.Core().V1().Services().Informer().HasSynced() {
		return nil, errors.New("services have not yet been read at least once, cannot construct envvars")
	}
	return a.services.List(labels.Everything())
}

// ClockSet makes every pod and every token look at the wall clock again. It is called when the clock was set, which timers do
// not notice.
func (a *Agent) ClockSet() {
	a.volumes.ClockSet()
	a.mu.Lock()
	all := slices.Collect(maps.Values(a.workers))
	a.mu.Unlock()
	for _, w := range all {
		w.Wake() // the worker's next step reads the clock
	}
}

// PodInformer returns the informer of the pods bound to this node. The agent runs it; the network shares it for host ports.
func (a *Agent) PodInformer() cache.SharedIndexInformer { return a.informer }
