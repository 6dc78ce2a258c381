package podloop

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// ContainerKind is the place of a container in its pod.
type ContainerKind uint8

const (
	KindRegular ContainerKind = iota
	KindInit
	KindEphemeral
)

// Label names the kind in metrics.
func (k ContainerKind) Label() string {
	switch k {
	case KindInit:
		return "init_container"
	case KindEphemeral:
		return "ephemeral_container"
	}
	return "container"
}

func containerStatuses(in StatusInput, cs []v1.Container, kind ContainerKind) []v1.ContainerStatus {
	if len(cs) == 0 {
		return nil
	}
	old := in.Pod.Status.ContainerStatuses
	if kind == KindInit {
		old = in.Pod.Status.InitContainerStatuses
	}
	out := make([]v1.ContainerStatus, 0, len(cs))
	for i := range cs {
		st := containerStatus(in, &cs[i], kind, old)
		if kind == KindRegular {
			setDeviceHealth(in, &st, old)
		}
		out = append(out, st)
	}
	return out
}

// setDeviceHealth sets the health of the container's devices. One that has given its devices back keeps what was last known.
func setDeviceHealth(in StatusInput, st *v1.ContainerStatus, olds []v1.ContainerStatus) {
	if in.Health != nil {
		st.AllocatedResourcesStatus = in.Health(st.Name)
	}
	if st.AllocatedResourcesStatus == nil {
		old, _ := podutil.GetContainerStatus(olds, st.Name)
		st.AllocatedResourcesStatus = old.AllocatedResourcesStatus
	}
}

func ephemeralStatuses(in StatusInput) []v1.ContainerStatus {
	var out []v1.ContainerStatus
	for i := range in.Pod.Spec.EphemeralContainers {
		out = append(out, containerStatus(in, ephemeralContainer(&in.Pod.Spec.EphemeralContainers[i]), KindEphemeral,
			in.Pod.Status.EphemeralContainerStatuses))
	}
	return out
}

// containerStatus returns the status of one container: its newest run, the run before as its last state, or why it waits.
func containerStatus(in StatusInput, c *v1.Container, kind ContainerKind, olds []v1.ContainerStatus) v1.ContainerStatus {
	st := v1.ContainerStatus{Name: c.Name, Image: c.Image, VolumeMounts: mountStatuses(c, in.RecursiveReadOnly)}
	old, _ := podutil.GetContainerStatus(olds, c.Name)
	cur, prev := in.Observed.Latest(c.Name), in.Observed.previous(c.Name)
	wait, waits := in.Decision.Waiting[c.Name]
	if cur == nil {
		return missingStatus(in, st, old, wait)
	}
	st.RestartCount = int32(cur.Attempt)
	st.Image, st.ImageID = cur.Image, cur.ImageID
	st.ContainerID = in.RuntimeName + "://" + cur.ID
	st.User = cur.User
	st.Resources, st.AllocatedResources = c.Resources.DeepCopy(), c.Resources.Requests.DeepCopy()
	if given, differs := in.Observed.Actual.Containers[c.Name]; differs && given.ID == cur.ID {
		st.Resources = given.Resources.DeepCopy()
	}
	if prev != nil && prev.State == StateExited {
		st.LastTerminationState.Terminated = terminatedState(in, prev)
	} else if old.ContainerID == st.ContainerID {
		st.LastTerminationState = old.LastTerminationState
	}
	switch {
	case cur.State == StateRunning && !(in.Observed.IsBusy(StartContainer, c.Name) && !in.Decision.Stopping):
		st.State.Running = &v1.ContainerStateRunning{StartedAt: metav1.NewTime(cur.Started)}
	case cur.State == StateExited:
		st.State.Terminated = terminatedState(in, cur)
		if waits && !in.Decision.Stopping && (cur.Obsolete || wait.Reason != creatingReason(in.Pod)) {
			st.LastTerminationState = st.State
			st.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: wait.Reason, Message: wait.Message}}
		}
	default:
		st.State.Waiting = &v1.ContainerStateWaiting{Reason: wait.Reason, Message: wait.Message}
	}
	setReadiness(in, &st, c, kind, cur)
	return st
}

// missingStatus returns the status of a container that the runtime does not have.
func missingStatus(in StatusInput, st, old v1.ContainerStatus, wait Waiting) v1.ContainerStatus {
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

func terminatedState(in StatusInput, i *Instance) *v1.ContainerStateTerminated {
	return &v1.ContainerStateTerminated{
		ExitCode: i.ExitCode, Reason: i.Reason, Message: i.Message,
		StartedAt: metav1.NewTime(i.Started), FinishedAt: metav1.NewTime(i.Finished),
		ContainerID: in.RuntimeName + "://" + i.ID,
	}
}

// setReadiness sets the fields started and ready from the results of the probes.
func setReadiness(in StatusInput, st *v1.ContainerStatus, c *v1.Container, kind ContainerKind, cur *Instance) {
	if kind == KindEphemeral {
		return
	}
	started := st.State.Running != nil && (c.StartupProbe == nil || in.Observed.StartedUp[cur.ID])
	st.Started = &started
	if kind == KindInit && !podutil.IsRestartableInitContainer(c) {
		st.Ready = st.State.Terminated != nil && st.State.Terminated.ExitCode == 0
		return
	}
	st.Ready = started && (c.ReadinessProbe == nil || in.Observed.Ready[cur.ID])
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
