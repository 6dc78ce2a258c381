package node

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// containerKind is the place of a container in its pod.
type containerKind uint8

const (
	kindRegular containerKind = iota
	kindInit
	kindEphemeral
)

// label names the kind in counters.
func (k containerKind) label() string {
	switch k {
	case kindInit:
		return "init_container"
	case kindEphemeral:
		return "ephemeral_container"
	}
	return "container"
}

func statusesOf(in statusInput, cs []v1.Container, kind containerKind) []v1.ContainerStatus {
	if len(cs) == 0 {
		return nil
	}
	old := in.Pod.Status.ContainerStatuses
	if kind == kindInit {
		old = in.Pod.Status.InitContainerStatuses
	}
	out := make([]v1.ContainerStatus, 0, len(cs))
	for i := range cs {
		out = append(out, containerStatus(in, &cs[i], kind, old))
	}
	return out
}

func ephemeralStatuses(in statusInput) []v1.ContainerStatus {
	var out []v1.ContainerStatus
	for i := range in.Pod.Spec.EphemeralContainers {
		out = append(out, containerStatus(in, ephemeral(&in.Pod.Spec.EphemeralContainers[i]), kindEphemeral,
			in.Pod.Status.EphemeralContainerStatuses))
	}
	return out
}

// containerStatus says how one container stands: its newest run, the one
// before as the last state, or why it does not run.
func containerStatus(in statusInput, c *v1.Container, kind containerKind, olds []v1.ContainerStatus) v1.ContainerStatus {
	st := v1.ContainerStatus{Name: c.Name, Image: c.Image, VolumeMounts: mountStatuses(c, in.RRO)}
	old, _ := podutil.GetContainerStatus(olds, c.Name)
	cur, prev := in.O.latest(c.Name), in.O.previous(c.Name)
	wait, waits := in.D.Waiting[c.Name]
	if cur == nil {
		return absent(in, st, old, wait)
	}
	st.RestartCount = int32(cur.Attempt)
	st.Image, st.ImageID = cur.Image, cur.ImageID
	st.ContainerID = in.RuntimeName + "://" + cur.ID
	st.User = cur.User
	st.Resources, st.AllocatedResources = c.Resources.DeepCopy(), c.Resources.Requests.DeepCopy()
	if prev != nil && prev.State == stateExited {
		st.LastTerminationState.Terminated = terminated(in, prev)
	} else if old.ContainerID == st.ContainerID {
		st.LastTerminationState = old.LastTerminationState
	}
	switch {
	case cur.State == stateRunning && !(in.O.busy(doStart, c.Name) && !in.D.Stopping):
		st.State.Running = &v1.ContainerStateRunning{StartedAt: metav1.NewTime(cur.Started)}
	case cur.State == stateExited:
		st.State.Terminated = terminated(in, cur)
		if waits && !in.D.Stopping && wait.Reason != creating(in.Pod) {
			st.LastTerminationState = st.State
			st.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: wait.Reason, Message: wait.Message}}
		}
	default:
		st.State.Waiting = &v1.ContainerStateWaiting{Reason: wait.Reason, Message: wait.Message}
	}
	readiness(in, &st, c, kind, cur)
	return st
}

// absent is the status of a container of which the runtime knows nothing.
func absent(in statusInput, st, old v1.ContainerStatus, wait waiting) v1.ContainerStatus {
	started := false
	st.Started = &started
	if old.State.Terminated != nil {
		old.Ready = old.Ready && old.State.Terminated.ExitCode == 0
		return old
	}
	st.RestartCount, st.LastTerminationState = old.RestartCount, old.LastTerminationState
	if old.State.Running != nil && st.LastTerminationState.Terminated == nil {
		st.LastTerminationState.Terminated = &v1.ContainerStateTerminated{
			Reason:   "ContainerStatusUnknown",
			Message:  "The container could not be located when the pod was deleted.  The container used to be Running",
			ExitCode: 137,
		}
		if in.Pod.DeletionTimestamp == nil {
			st.RestartCount++
		}
	}
	st.State.Waiting = &v1.ContainerStateWaiting{Reason: wait.Reason, Message: wait.Message}
	return st
}

func terminated(in statusInput, i *instance) *v1.ContainerStateTerminated {
	return &v1.ContainerStateTerminated{
		ExitCode: i.ExitCode, Reason: i.Reason, Message: i.Message,
		StartedAt: metav1.NewTime(i.Started), FinishedAt: metav1.NewTime(i.Finished),
		ContainerID: in.RuntimeName + "://" + i.ID,
	}
}

// readiness sets started and ready from what the probes found.
func readiness(in statusInput, st *v1.ContainerStatus, c *v1.Container, kind containerKind, cur *instance) {
	if kind == kindEphemeral {
		return
	}
	started := st.State.Running != nil && (c.StartupProbe == nil || in.O.StartedUp[cur.ID])
	st.Started = &started
	if kind == kindInit && !podutil.IsRestartableInitContainer(c) {
		st.Ready = st.State.Terminated != nil && st.State.Terminated.ExitCode == 0
		return
	}
	st.Ready = started && (c.ReadinessProbe == nil || in.O.Ready[cur.ID])
}

func mountStatuses(c *v1.Container, rro bool) []v1.VolumeMountStatus {
	var out []v1.VolumeMountStatus
	for _, m := range c.VolumeMounts {
		s := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := v1.RecursiveReadOnlyDisabled
			if m.RecursiveReadOnly != nil && (*m.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled ||
				*m.RecursiveReadOnly == v1.RecursiveReadOnlyIfPossible && rro) {
				mode = v1.RecursiveReadOnlyEnabled
			}
			s.RecursiveReadOnly = &mode
		}
		out = append(out, s)
	}
	return out
}
