package podloop

import (
	"time"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// MinGraceSeconds is the grace period that a container gets at least, when a preStop hook or the containers stopped before it
// have used up the pod's.
const MinGraceSeconds = 2

// stopPod adds the next actions of a pod's end. The order is: containers, sandbox, volumes and cgroup, the API object, the
// files and dead containers. Each step waits for the one before.
func stopPod(pod *v1.Pod, o *Observed, d *Decision, why string) {
	podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *v1.Container, _ podutil.ContainerType) bool {
		d.waitFor(c.Name, creatingReason(pod), "")
		return true
	})
	grace := GracePeriod(pod, o)
	if !killContainers(pod, o, d, why, "Stopping container", grace) {
		return
	}
	if o.anyBusy(StartContainer) || o.IsBusy(CreateSandbox, "") || o.IsBusy(SetUpVolumes, "") || o.IsBusy(PrepareClaims, "") || o.anyBusy(PullImage) {
		return
	}
	d.Stopped = true
	if o.Sandbox != nil && !o.Sandbox.Stopped {
		if !o.IsBusy(StopSandbox, "") && RetryDue(o, o.SandboxRetry, d) {
			d.add(Action{Verb: StopSandbox, ID: o.Sandbox.ID})
		}
		return
	}
	if !o.TornDown {
		if !o.IsBusy(TearDown, "") && RetryDue(o, o.TearDownRetry, d) {
			d.add(Action{Verb: TearDown})
		}
		return
	}
	if pod.DeletionTimestamp == nil && !o.Gone {
		return // the pod has finished; its object stays until it is deleted
	}
	if !o.Gone {
		if o.StatusFresh && !o.IsBusy(DeletePod, "") && RetryDue(o, o.DeleteRetry, d) {
			d.add(Action{Verb: DeletePod})
		}
		return
	}
	if !o.Purged {
		if !o.IsBusy(PurgePod, "") && RetryDue(o, o.PurgeRetry, d) {
			d.add(Action{Verb: PurgePod})
		}
		return
	}
	d.Done = true
}

// killContainers adds the stop of each running container and reports whether none runs. Sidecars are stopped last and in
// reverse order, one after the other.
func killContainers(pod *v1.Pod, o *Observed, d *Decision, reason, message string, grace int64) bool {
	quiet := true
	kill := func(name string, grace int64) bool {
		running := false
		for _, in := range o.Containers[name] {
			if in.State != StateRunning {
				continue
			}
			running, quiet = true, false
			if r := o.KillRetry[name]; !RetryDue(o, r, d) {
				continue
			}
			if was, busy := o.killGrace(name); !busy || grace < was {
				d.add(Action{Verb: KillContainer, Container: name, ID: in.ID, Grace: grace, Reason: reason, Message: message + stopSuffix(message, name)})
			}
		}
		return running
	}
	sidecars := map[string]bool{}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podutil.IsRestartableInitContainer(c) {
			sidecars[c.Name] = true
		}
	}
	for _, name := range o.ContainerNames() {
		if !sidecars[name] {
			kill(name, grace)
		}
	}
	if !quiet && len(sidecars) > 0 {
		return false
	}
	for i := len(pod.Spec.InitContainers) - 1; i >= 0; i-- {
		name := pod.Spec.InitContainers[i].Name
		if sidecars[name] && kill(name, remainingGrace(o, grace)) {
			return false
		}
	}
	return quiet
}

// remainingGrace returns the seconds of the grace period that are left for the containers that are stopped last.
func remainingGrace(o *Observed, grace int64) int64 {
	if o.StoppingSince.IsZero() || grace <= MinGraceSeconds {
		return grace
	}
	return max(MinGraceSeconds, grace-int64(o.Now.Sub(o.StoppingSince)/time.Second))
}

func stopSuffix(message, name string) string {
	if message == "Stopping container" {
		return " " + name
	}
	return ""
}

// GracePeriod returns the grace period of the pod in seconds, at least 1. It is 1 for a pod that is gone from the API, which
// was deleted by force. o may be nil.
func GracePeriod(pod *v1.Pod, o *Observed) int64 {
	grace := int64(v1.DefaultTerminationGracePeriodSeconds)
	switch {
	case pod.DeletionGracePeriodSeconds != nil:
		grace = *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		grace = *pod.Spec.TerminationGracePeriodSeconds
	}
	if o != nil && o.GraceLimit != nil {
		grace = min(grace, *o.GraceLimit)
	}
	if o != nil && o.Gone && !o.KeepsGrace && pod.DeletionTimestamp == nil {
		grace = min(grace, 1)
	}
	return max(grace, 1)
}
