package node

import (
	"time"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// minGrace is what a container always gets to end by itself when the pod's
// grace period is used up by those that were stopped before it.
const minGrace = 2

// stop brings a pod to its end: containers, sandbox, volumes and cgroup, the
// API object, the remains. Each step waits for the one before. Pure.
func stop(pod *v1.Pod, o *observed, d *decision, why string) {
	podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *v1.Container, _ podutil.ContainerType) bool {
		d.wait(c.Name, creating(pod), "")
		return true
	})
	grace := graceOf(pod, o)
	if !killAll(pod, o, d, why, "Stopping container", grace) {
		return
	}
	if o.anyBusy(doStart) || o.busy(doSandbox, "") || o.busy(doVolumes, "") || o.anyBusy(doImage) {
		return
	}
	d.Stopped = true
	if o.Sandbox != nil && !o.Sandbox.Stopped {
		if !o.busy(doStopSandbox, "") && due(o, o.SandboxRetry, d) {
			d.do(action{Verb: doStopSandbox, ID: o.Sandbox.ID})
		}
		return
	}
	if !o.TornDown {
		if !o.busy(doTearDown, "") && due(o, o.TearDownRetry, d) {
			d.do(action{Verb: doTearDown})
		}
		return
	}
	if pod.DeletionTimestamp == nil && !o.Gone {
		return // finished; it stays until somebody deletes it
	}
	if !o.Gone {
		if o.StatusFresh && !o.busy(doDelete, "") && due(o, o.DeleteRetry, d) {
			d.do(action{Verb: doDelete})
		}
		return
	}
	if !o.Purged {
		if !o.busy(doPurge, "") && due(o, o.PurgeRetry, d) {
			d.do(action{Verb: doPurge})
		}
		return
	}
	d.Done = true
}

// killAll stops every running container, sidecars last and in reverse; true
// when none runs.
func killAll(pod *v1.Pod, o *observed, d *decision, reason, message string, grace int64) bool {
	quiet := true
	kill := func(name string, grace int64) bool {
		running := false
		for _, in := range o.Containers[name] {
			if in.State != stateRunning {
				continue
			}
			running, quiet = true, false
			if r := o.KillRetry[name]; !due(o, r, d) {
				continue
			}
			if was, busy := o.killing(name); !busy || grace < was {
				d.do(action{Verb: doKill, Container: name, ID: in.ID, Grace: grace, Reason: reason, Message: message + stopSuffix(message, name)})
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
	for _, name := range o.names() {
		if !sidecars[name] {
			kill(name, grace)
		}
	}
	if !quiet && len(sidecars) > 0 {
		return false
	}
	for i := len(pod.Spec.InitContainers) - 1; i >= 0; i-- {
		name := pod.Spec.InitContainers[i].Name
		if sidecars[name] && kill(name, left(o, grace)) {
			return false
		}
	}
	return quiet
}

// left is what remains of the grace period for those stopped last.
func left(o *observed, grace int64) int64 {
	if o.StoppingSince.IsZero() || grace <= minGrace {
		return grace
	}
	return max(minGrace, grace-int64(o.Now.Sub(o.StoppingSince)/time.Second))
}

func stopSuffix(message, name string) string {
	if message == "Stopping container" {
		return " " + name
	}
	return ""
}

// graceOf is the grace period in seconds that applies to the whole pod. A pod
// that is gone from the API was deleted by force.
func graceOf(pod *v1.Pod, o *observed) int64 {
	grace := int64(v1.DefaultTerminationGracePeriodSeconds)
	switch {
	case pod.DeletionGracePeriodSeconds != nil:
		grace = *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		grace = *pod.Spec.TerminationGracePeriodSeconds
	}
	if o != nil && o.AtOnce {
		grace = min(grace, 1)
	}
	if o != nil && o.Gone && pod.DeletionTimestamp == nil {
		grace = min(grace, 1)
	}
	return max(grace, 1)
}
