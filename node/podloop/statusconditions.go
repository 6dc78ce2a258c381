package podloop

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// Panicked is the condition of a pod whose handling has panicked, until the handling succeeds.
const Panicked v1.PodConditionType = "balsa.dev/Panicked"

// podConditions returns the conditions that other writers set, unchanged, and then the agent's. A condition keeps its
// transition time while its status stays the same.
func podConditions(in StatusInput, s *v1.PodStatus) []v1.PodCondition {
	var out []v1.PodCondition
	disrupted := in.Observed.Disruption != nil && IsTerminal(s.Phase)
	for _, c := range in.Pod.Status.Conditions {
		if !isOwnCondition(c.Type) && !(disrupted && c.Type == v1.DisruptionTarget) {
			out = append(out, c)
		}
	}
	containers := containersReadyCondition(in.Pod, s)
	mine := []v1.PodCondition{
		{Type: v1.PodReadyToStartContainers, Status: boolCondition(in.Observed.Sandbox != nil && in.Observed.Sandbox.Ready && !in.Observed.Sandbox.Stopped)},
		initializedCondition(in, s),
		readyCondition(in.Pod, containers, out),
		containers,
		{Type: v1.PodScheduled, Status: v1.ConditionTrue},
	}
	if c := restartingCondition(in, s); c != nil {
		mine = append(mine, *c)
	}
	if disrupted {
		mine = append(mine, v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue,
			Reason: in.Observed.Disruption.Reason, Message: in.Observed.Disruption.Message})
	}
	for i := range mine {
		setTimes(&mine[i], in)
	}
	if in.Observed.PanicRetry != nil {
		mine = append(mine, PanickedCondition(in))
	}
	return append(append(out, mine...), resizeConditions(in, s)...)
}

// resizeConditions returns why a resize waits, and that one is carried out. Before the node has judged a resize the conditions
// stay as they are.
func resizeConditions(in StatusInput, s *v1.PodStatus) []v1.PodCondition {
	if in.Decision.Stopping || IsTerminal(s.Phase) {
		return nil
	}
	var out []v1.PodCondition
	add := func(t v1.PodConditionType, reason, message string, generation int64) {
		c := v1.PodCondition{Type: t, Status: v1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: generation,
			LastTransitionTime: metav1.NewTime(in.Observed.Now)}
		if _, old := podutil.GetPodConditionFromList(in.Pod.Status.Conditions, t); old != nil && old.Reason == reason {
			c.LastTransitionTime = old.LastTransitionTime
		}
		out = append(out, c)
	}
	_, old := podutil.GetPodConditionFromList(in.Pod.Status.Conditions, v1.PodResizePending)
	switch p := in.Observed.Pending; {
	case in.Observed.Undecided && old != nil:
		out = append(out, *old)
	case p != nil && !in.Observed.Undecided:
		add(v1.PodResizePending, p.Reason, p.Message, p.Generation)
	}
	if r := in.Observed.Resizing; r != nil {
		add(v1.PodResizeInProgress, r.Reason, r.Message, r.Generation)
	}
	return out
}

func isOwnCondition(t v1.PodConditionType) bool {
	switch t {
	case v1.PodScheduled, v1.PodReady, v1.PodInitialized, v1.ContainersReady, v1.PodReadyToStartContainers, Panicked,
		v1.PodResizePending, v1.PodResizeInProgress, v1.AllContainersRestarting:
		return true
	}
	return false
}

func boolCondition(b bool) v1.ConditionStatus {
	if b {
		return v1.ConditionTrue
	}
	return v1.ConditionFalse
}

func setTimes(c *v1.PodCondition, in StatusInput) {
	c.ObservedGeneration = in.Pod.Generation
	c.LastTransitionTime = metav1.NewTime(in.Observed.Now)
	if _, old := podutil.GetPodConditionFromList(in.Pod.Status.Conditions, c.Type); old != nil {
		c.LastProbeTime = old.LastProbeTime
		if old.Status == c.Status && !old.LastTransitionTime.IsZero() {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
}

// containersReadyCondition is True when each sidecar and each regular container is ready.
func containersReadyCondition(pod *v1.Pod, s *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionFalse}
	all := append(append([]v1.ContainerStatus{}, s.InitContainerStatuses...), s.ContainerStatuses...)
	if len(all) == 0 {
		c.Reason = "UnknownContainerStatuses"
		if s.Phase == v1.PodFailed {
			c.Reason = "PodFailed"
		}
		return c
	}
	switch s.Phase {
	case v1.PodSucceeded:
		c.Reason = "PodCompleted"
		return c
	case v1.PodFailed:
		c.Reason = "PodFailed"
		return c
	}
	var unready, unknown []string
	check := func(name string) {
		if st, ok := podutil.GetContainerStatus(all, name); !ok {
			unknown = append(unknown, name)
		} else if !st.Ready {
			unready = append(unready, name)
		}
	}
	for i := range pod.Spec.InitContainers {
		if podutil.IsRestartableInitContainer(&pod.Spec.InitContainers[i]) {
			check(pod.Spec.InitContainers[i].Name)
		}
	}
	for i := range pod.Spec.Containers {
		check(pod.Spec.Containers[i].Name)
	}
	if m := containerFaults(unknown, unready, "unready"); m != "" {
		c.Reason, c.Message = "ContainersNotReady", m
		return c
	}
	c.Status = v1.ConditionTrue
	return c
}

func containerFaults(unknown, bad []string, word string) string {
	var m []string
	if len(unknown) > 0 {
		m = append(m, fmt.Sprintf("containers with unknown status: %s", unknown))
	}
	if len(bad) > 0 {
		m = append(m, fmt.Sprintf("containers with %s status: %s", word, bad))
	}
	return strings.Join(m, ", ")
}

// readyCondition is True when the containers are ready and each readiness gate, which other writers set, is True.
func readyCondition(pod *v1.Pod, containers v1.PodCondition, others []v1.PodCondition) v1.PodCondition {
	c := containers
	c.Type = v1.PodReady
	if c.Status != v1.ConditionTrue {
		return c
	}
	var m []string
	for _, g := range pod.Spec.ReadinessGates {
		_, o := podutil.GetPodConditionFromList(others, g.ConditionType)
		if o == nil {
			m = append(m, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", string(g.ConditionType)))
		} else if o.Status != v1.ConditionTrue {
			m = append(m, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", string(g.ConditionType), o.Status))
		}
	}
	if len(m) > 0 {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, "ReadinessGatesNotReady", strings.Join(m, ", ")
	}
	return c
}

func initializedCondition(in StatusInput, s *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	if len(s.InitContainerStatuses) == 0 && len(s.ContainerStatuses) == 0 && len(in.Pod.Spec.InitContainers) > 0 {
		c.Status, c.Reason = v1.ConditionFalse, "UnknownContainerStatuses"
		return c
	}
	if s.Phase == v1.PodSucceeded {
		c.Reason = "PodCompleted"
		return c
	}
	for _, st := range s.ContainerStatuses {
		if st.Started != nil && *st.Started || st.State.Running != nil || st.LastTerminationState.Terminated != nil ||
			st.State.Terminated != nil && st.ContainerID != "" {
			return c
		}
	}
	if _, old := podutil.GetPodConditionFromList(in.Pod.Status.Conditions, v1.PodInitialized); old != nil && old.Status == v1.ConditionTrue && in.Observed.beginsAnew() {
		return c // initialization is repeated
	}
	var incomplete []string
	for i := range in.Pod.Spec.InitContainers {
		ic := &in.Pod.Spec.InitContainers[i]
		st, _ := podutil.GetContainerStatus(s.InitContainerStatuses, ic.Name)
		done := st.Ready
		if podutil.IsRestartableInitContainer(ic) {
			done = st.Started != nil && *st.Started
		}
		if !done {
			incomplete = append(incomplete, ic.Name)
		}
	}
	if len(incomplete) > 0 {
		c.Status, c.Reason = v1.ConditionFalse, "ContainersNotInitialized"
		c.Message = containerFaults(nil, incomplete, "incomplete")
	}
	return c
}

func PanickedCondition(in StatusInput) v1.PodCondition {
	c := v1.PodCondition{Type: Panicked, Status: v1.ConditionTrue, Reason: in.Observed.PanicRetry.Reason, Message: in.Observed.PanicRetry.Message}
	setTimes(&c, in)
	if c.LastTransitionTime.IsZero() {
		c.LastTransitionTime = metav1.NewTime(in.Observed.Now)
	}
	return c
}
