package podloop

import (
	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// restartAll adds what restarts all containers of a pod when one of them has exited and its rule asks for that (KEP-5532). It
// reports whether that goes on: then nothing else is done for the pod. The containers end without a grace period.
func restartAll(pod *v1.Pod, o *Observed, d *Decision) bool {
	if !restartsAll(pod, o) {
		return false
	}
	setAllWaiting(pod, d)
	quiet := true
	for _, c := range resizable(pod) {
		if o.IsBusy(StartContainer, c.Name) || o.IsBusy(KillContainer, c.Name) {
			quiet = false
			continue
		}
		if in := o.Latest(c.Name); in != nil && in.State == StateRunning {
			quiet = false
			if RetryDue(o, o.KillRetry[c.Name], d) {
				d.add(Action{Verb: KillContainer, Container: c.Name, ID: in.ID, Reason: Replace,
					Message: "Container " + c.Name + " is restarted with all containers of the pod"})
			}
		}
	}
	if quiet {
		d.add(Action{Verb: RestartAll})
	}
	return true
}

// restartsAll reports whether a container has exited by whose rule all containers restart now. The back-off of that container
// delays it, so that no pod restarts in a tight loop.
func restartsAll(pod *v1.Pod, o *Observed) bool {
	for _, c := range resizable(pod) {
		in := o.Latest(c.Name)
		if in != nil && in.asksForAll(c) && !o.Now.Before(restartAt(o, c.Name, in)) {
			return true
		}
	}
	return false
}

// asksForAll reports whether a container's run has ended in a way for which all containers restart, and they have not yet.
func (in *Instance) asksForAll(c *v1.Container) bool {
	if in.State != StateExited || in.Obsolete {
		return false
	}
	rule, ok := podutil.FindMatchingContainerRestartRule(*c, in.ExitCode)
	return ok && rule.Action == v1.ContainerRestartRuleActionRestartAllContainers
}

// BeginAnew makes all runs of the pod's init and regular containers obsolete: they start again from the first init container.
// The back-off goes on for those that have asked for it alone.
func (o *Observed) BeginAnew(pod *v1.Pod) {
	for _, c := range resizable(pod) {
		for _, in := range o.Containers[c.Name] {
			in.Replaced = in.Replaced || !in.asksForAll(c)
			in.Obsolete = true
		}
	}
}

// restartingCondition says whether all containers of a pod are being restarted; nil for a pod that has no such rule.
func restartingCondition(in StatusInput, s *v1.PodStatus) *v1.PodCondition {
	if !podutil.AllContainersCouldRestart(&in.Pod.Spec) {
		return nil
	}
	c := &v1.PodCondition{Type: v1.AllContainersRestarting, Status: v1.ConditionFalse}
	switch {
	case s.Phase == v1.PodSucceeded:
		c.Reason = "PodCompleted"
	case s.Phase == v1.PodFailed:
		c.Reason = "PodFailed"
	case !in.Decision.Stopping && restartsAll(in.Pod, in.Observed):
		c.Status, c.Reason, c.Message = v1.ConditionTrue, "RestartAllContainersStarted", "container exited with restart policy rule"
	}
	return c
}

// beginsAnew reports whether a container has not started yet since all restart.
func (o *Observed) beginsAnew() bool {
	for name := range o.Containers {
		if o.Latest(name).Obsolete {
			return true
		}
	}
	return false
}
