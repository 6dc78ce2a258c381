package podworker

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/node/cri"
	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/probe"
)

// UID returns the UID of the worker's pod.
func (w *Worker) UID() types.UID { return w.uid }

// View returns how the pod stands; read-only.
func (w *Worker) View() *View { return w.snapshot.Load() }

// Leaving reports whether the API has no such pod any more: its room on the node is free.
func (w *Worker) Leaving() bool { return w.leaving.Load() }

// Leave tells the worker that the API has no such pod any more.
func (w *Worker) Leave() {
	w.leaving.Store(true)
	w.mailbox.post(w.setGone)
}

// Remove tells the worker that the manifest of its static pod is gone. Unlike a pod that was deleted by force, its containers
// have their grace period.
func (w *Worker) Remove() {
	w.leaving.Store(true)
	w.mailbox.post(func() {
		w.observed.KeepsGrace = true
		w.setGone()
	})
}

// Wake makes the worker look at its pod again, for example because the clock was set.
func (w *Worker) Wake() { w.mailbox.post(func() {}) }

// Update hands the worker a version of its pod from the API; an older one than it knows has no effect.
func (w *Worker) Update(pod *v1.Pod) { w.mailbox.post(func() { w.setPod(pod) }) }

// Probed hands the worker what a probe of a container found.
func (w *Worker) Probed(container string, kind probe.Kind, r probe.Result) {
	w.mailbox.post(func() { w.applyProbeResult(container, kind, r) })
}

// Eviction is why and how the node ends a pod.
type Eviction struct {
	Why   podloop.Failure
	Grace int64 // the longest grace period of containers, in seconds
	// Disruption gives the pod the condition DisruptionTarget, so that a Job does not count its end as a failure.
	Disruption  bool
	Annotations map[string]string // of the event
}

// Evict fails the pod and stops its containers.
func (w *Worker) Evict(e Eviction) { w.mailbox.post(func() { w.applyEviction(e) }) }

// RuntimeEvent hands the worker an event of its pod's sandbox or containers.
func (w *Worker) RuntimeEvent(e *runtimeapi.ContainerEventResponse) {
	sandboxID := e.GetPodSandboxStatus().GetId()
	dead := e.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT && e.ContainerId == sandboxID
	w.mailbox.post(func() {
		if b := w.observed.Sandbox; dead && b != nil && b.ID == sandboxID {
			b.Ready = false
		}
		for _, s := range e.ContainersStatuses {
			// The operation that creates a container reports this state itself.
			if sandboxID != "" && s.State != runtimeapi.ContainerState_CONTAINER_CREATED {
				w.observe(s, sandboxID)
			}
		}
	})
}

// Relisted hands the worker everything that the runtime has of its pod.
func (w *Worker) Relisted(p *cri.Pod) { w.mailbox.post(func() { w.applyListing(p) }) }

// Reject fails the pod before anything of it was started. It must be called before Run.
func (w *Worker) Reject(why *podloop.Failure) { w.observed.Failed = why }

// Rejection returns the reason for which the pod was rejected, nil when it was not. It must be called before Run.
func (w *Worker) Rejection() *podloop.Failure { return w.observed.Failed }

// Adopt takes over what the runtime has of the pod. The readiness in the pod's status holds until a probe gives another. It
// must be called before Run.
func (w *Worker) Adopt(o *podloop.Observed) {
	o.StartTime = w.observed.StartTime
	w.observed = o
	w.resume()
	if o.Sandbox != nil {
		w.handler = o.Sandbox.Handler
	}
	for _, sts := range [][]v1.ContainerStatus{w.pod.Status.InitContainerStatuses, w.pod.Status.ContainerStatuses} {
		for i := range sts {
			in := o.Latest(sts[i].Name)
			if in == nil || sts[i].ContainerID != w.host.RuntimeName+"://"+in.ID {
				continue
			}
			o.Ready[in.ID] = sts[i].Ready
			o.StartedUp[in.ID] = sts[i].Started != nil && *sts[i].Started
		}
	}
	for _, ins := range o.Containers {
		for _, in := range ins {
			if in.State == podloop.StateExited {
				in.TerminationMessage = true
				w.readTerminationMessage(in, w.terminationPolicy(in.Name))
			}
		}
	}
	for name := range o.Containers {
		o.Backoff[name] = podloop.BackoffOf(o.Latest(name))
	}
	// The probes of running containers begin when the worker runs.
	w.mailbox.post(func() {
		for _, name := range o.ContainerNames() {
			if c, _ := podloop.FindContainer(w.pod, name); c != nil && o.Latest(name) != nil {
				w.startProbes(c, o.Latest(name).ID)
			}
		}
	})
}

func (w *Worker) terminationPolicy(name string) v1.TerminationMessagePolicy {
	if c, _ := podloop.FindContainer(w.pod, name); c != nil {
		return c.TerminationMessagePolicy
	}
	return v1.TerminationMessageReadFile
}

// applyListing applies a complete list of the pod's sandboxes and containers in the runtime. Containers that are missing in
// it are dropped, unless an operation is in flight that may just have created them.
func (w *Worker) applyListing(p *cri.Pod) {
	if len(w.ops) > 0 {
		for _, c := range p.Containers {
			if w.observed.ByID(c.Id) != nil {
				w.observe(c, p.SandboxOf[c.Id])
			}
		}
		return
	}
	there := map[string]bool{}
	for _, c := range p.Containers {
		there[c.Id] = true
		w.observe(c, p.SandboxOf[c.Id])
	}
	for _, ins := range w.observed.Containers {
		for _, in := range ins {
			if !there[in.ID] {
				w.observed.Remove(in.ID)
			}
		}
	}
	b := p.Newest()
	switch {
	case b == nil:
		w.observed.Sandbox = nil
	case w.observed.Sandbox == nil || w.observed.Sandbox.ID != b.Id:
		w.observed.Sandbox = criconfig.SandboxOf(b)
	case b.State != runtimeapi.PodSandboxState_SANDBOX_READY:
		w.observed.Sandbox.Ready = false
	}
}

// applyEviction fails the pod. The next step stops its containers.
func (w *Worker) applyEviction(e Eviction) {
	if w.observed.Failed != nil || w.observed.Gone || podloop.IsTerminal(w.pod.Status.Phase) {
		return
	}
	w.host.Events.AnnotatedEventf(w.pod, e.Annotations, v1.EventTypeWarning, e.Why.Reason, "%s", e.Why.Message)
	w.observed.Failed, w.observed.GraceLimit = &e.Why, &e.Grace
	if e.Disruption {
		w.observed.Disruption = &podloop.Failure{Reason: v1.PodReasonTerminationByKubelet, Message: e.Why.Message}
	}
}
