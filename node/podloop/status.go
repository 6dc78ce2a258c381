package podloop

import (
	"sort"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
)

// StatusInput is everything that a pod's status follows from.
type StatusInput struct {
	Pod         *v1.Pod // with the newest status that is in the API
	Observed    *Observed
	Decision    Decision
	HostIPs     []string
	RuntimeName string // prefix of container IDs, such as "containerd"
	// Health returns the devices of a container with their health; nil: no container has devices.
	Health            func(container string) []v1.ResourceStatus
	RecursiveReadOnly bool // the runtime handler can mount read-only recursively
}

// PodStatus returns the status to report. A terminal phase stays.
func PodStatus(in StatusInput) v1.PodStatus {
	old := &in.Pod.Status
	s := *old.DeepCopy()
	if !in.Observed.Undecided {
		s.ObservedGeneration = in.Pod.Generation
	}
	s.QOSClass = v1qos.GetPodQOS(in.Pod)
	if s.StartTime == nil && !in.Observed.StartTime.IsZero() {
		t := metav1.NewTime(in.Observed.StartTime)
		s.StartTime = &t
	}
	if f := in.Observed.Failed; f != nil && len(in.Observed.Containers) == 0 && in.Observed.Sandbox == nil {
		// The pod never started: it has no statuses of containers.
		s.Phase, s.Reason, s.Message = v1.PodFailed, f.Reason, f.Message
		setIPs(in, &s)
		s.Conditions = podConditions(in, &s)
		return s
	}
	setResources(in, &s)
	s.InitContainerStatuses = containerStatuses(in, in.Pod.Spec.InitContainers, KindInit)
	s.ContainerStatuses = containerStatuses(in, in.Pod.Spec.Containers, KindRegular)
	s.EphemeralContainerStatuses = ephemeralStatuses(in)
	sort.Slice(s.ContainerStatuses, func(i, j int) bool { return s.ContainerStatuses[i].Name < s.ContainerStatuses[j].Name })
	if in.Decision.Stopped {
		setFinalStates(in, &s)
	}
	s.Phase = podPhase(in, &s)
	if f := in.Observed.Failed; f != nil {
		s.Phase, s.Reason, s.Message = v1.PodFailed, f.Reason, f.Message
		if !in.Decision.Stopped && anyRunning(in.Observed) {
			s.Phase, s.Reason, s.Message = old.Phase, old.Reason, old.Message // a pod that has failed is replaced: not before it has ended
		}
	}
	if IsTerminal(old.Phase) {
		s.Phase = old.Phase
	} else if !in.Decision.Stopped && IsTerminal(s.Phase) && in.Observed.Failed == nil && in.Decision.Stopping {
		// A sidecar still runs: the phase becomes terminal with the last container.
		if anyRunning(in.Observed) {
			s.Phase = v1.PodRunning
		}
	}
	setIPs(in, &s)
	s.Conditions = podConditions(in, &s)
	return s
}

// setResources sets the resources of the pod as a whole: those allocated, and those in force.
func setResources(in StatusInput, s *v1.PodStatus) {
	all := resourcehelper.PodResourcesOptions{}
	s.AllocatedResources, s.Resources = resourcehelper.PodRequests(in.Pod, all), nil
	actual := in.Observed.Actual.On(in.Pod)
	requests, limits := resourcehelper.PodRequests(actual, all), resourcehelper.PodLimits(actual, all)
	if len(requests)+len(limits) > 0 {
		s.Resources = &v1.ResourceRequirements{Requests: requests, Limits: limits}
	}
}

func IsTerminal(p v1.PodPhase) bool { return p == v1.PodFailed || p == v1.PodSucceeded }

func anyRunning(o *Observed) bool {
	for _, ins := range o.Containers {
		for _, in := range ins {
			if in.State == StateRunning {
				return true
			}
		}
	}
	return false
}

// setFinalStates gives each container of a pod that has ended a final state, as upstream does.
func setFinalStates(in StatusInput, s *v1.PodStatus) {
	lost := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		Reason:   "ContainerStatusUnknown",
		Message:  "The container could not be located when the pod was terminated",
		ExitCode: 137,
	}}
	if isInitialized(in, s) {
		for i := range s.ContainerStatuses {
			if s.ContainerStatuses[i].State.Terminated == nil {
				s.ContainerStatuses[i].State = lost
			}
		}
	}
	last := -1 // the last init container that ever ran
	for i := range s.InitContainerStatuses {
		st := &s.InitContainerStatuses[i]
		if st.State.Waiting == nil || st.LastTerminationState.Terminated != nil {
			last = i
		}
	}
	for i := 0; i <= last; i++ {
		if s.InitContainerStatuses[i].State.Terminated == nil {
			s.InitContainerStatuses[i].State = lost
		}
	}
}

func isInitialized(in StatusInput, s *v1.PodStatus) bool {
	if len(in.Pod.Spec.InitContainers) == 0 {
		return true
	}
	for i := range in.Pod.Spec.Containers {
		if len(in.Observed.Containers[in.Pod.Spec.Containers[i].Name]) > 0 {
			return true
		}
	}
	for _, st := range s.ContainerStatuses {
		if st.LastTerminationState.Terminated != nil || st.State.Waiting == nil {
			return true
		}
	}
	for i := range s.InitContainerStatuses {
		if t := s.InitContainerStatuses[i].State.Terminated; t == nil || t.ExitCode != 0 {
			return false
		}
	}
	return true
}

func setIPs(in StatusInput, s *v1.PodStatus) {
	if len(in.HostIPs) > 0 {
		s.HostIP = in.HostIPs[0]
		s.HostIPs = nil
		for _, ip := range in.HostIPs {
			s.HostIPs = append(s.HostIPs, v1.HostIP{IP: ip})
		}
	}
	ips := PodIPs(in.Pod, in.Observed, in.HostIPs)
	if len(ips) == 0 {
		return
	}
	s.PodIP, s.PodIPs = ips[0], nil
	for _, ip := range ips {
		s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip})
	}
}

// PodIPs returns the addresses of the pod: those of its sandbox, or hostIPs on the host's network.
func PodIPs(pod *v1.Pod, o *Observed, hostIPs []string) []string {
	if pod.Spec.HostNetwork {
		return hostIPs
	}
	if o.Sandbox == nil {
		return nil
	}
	return o.Sandbox.IPs
}

// containerCounts are the numbers from which the phase follows, as upstream counts them.
type containerCounts struct {
	pendingInit, pendingSidecar, initFailed       int
	unknown, running, waiting, stopped, succeeded int
	final                                         int // stopped, and not restarted
}

func podPhase(in StatusInput, s *v1.PodStatus) v1.PodPhase {
	var n containerCounts
	for i := range in.Pod.Spec.InitContainers {
		n.addInit(in, &in.Pod.Spec.InitContainers[i], s.InitContainerStatuses)
	}
	for i := range in.Pod.Spec.Containers {
		n.addRegular(in, &in.Pod.Spec.Containers[i], s.ContainerStatuses)
	}
	if old := in.Pod.Status.Phase; old == v1.PodRunning && in.Observed.beginsAnew() && !in.Decision.Stopped {
		return old // initialization is repeated, and a pod does not go back to Pending
	}
	p := n.phase(in.Decision.Stopped, anyRegularStarted(in.Pod, in.Observed))
	if in.Decision.Stopped && !IsTerminal(p) {
		return v1.PodFailed
	}
	return p
}

// restartsLater reports whether a container that ended with code is started again.
func (in StatusInput) restartsLater(c *v1.Container, code int32) bool {
	last := in.Observed.Latest(c.Name)
	return last != nil && (last.Replaced || last.Obsolete) || restartsAfter(in.Pod, c, code)
}

func (n *containerCounts) addInit(in StatusInput, c *v1.Container, sts []v1.ContainerStatus) {
	st, ok := podutil.GetContainerStatus(sts, c.Name)
	if podutil.IsRestartableInitContainer(c) {
		n.addSidecar(st, ok)
		return
	}
	t := st.State.Terminated
	if t == nil && st.State.Waiting != nil {
		t = st.LastTerminationState.Terminated
	}
	switch {
	case !ok, t == nil:
		n.pendingInit++
	case t.ExitCode != 0 && !in.restartsLater(c, t.ExitCode):
		n.initFailed++
	case t.ExitCode != 0:
		n.pendingInit++
	case st.State.Terminated == nil:
		n.pendingInit++
	}
}

func (n *containerCounts) addSidecar(st v1.ContainerStatus, ok bool) {
	switch {
	case !ok:
		n.unknown++
	case st.State.Running != nil:
		if st.Started == nil || !*st.Started {
			n.pendingSidecar++
		}
		n.running++
	case st.State.Terminated != nil:
	case st.LastTerminationState.Terminated == nil:
		n.pendingSidecar++
		n.waiting++
	}
}

func (n *containerCounts) addRegular(in StatusInput, c *v1.Container, sts []v1.ContainerStatus) {
	st, ok := podutil.GetContainerStatus(sts, c.Name)
	if !ok {
		n.unknown++
		return
	}
	if st.State.Running != nil {
		n.running++
		return
	}
	t := st.State.Terminated
	now := t != nil
	if t == nil {
		t = st.LastTerminationState.Terminated
	}
	if t == nil {
		n.waiting++
		return
	}
	n.stopped++
	if !in.restartsLater(c, t.ExitCode) {
		n.final++
	}
	if now && t.ExitCode == 0 {
		n.succeeded++
	}
}

func (n *containerCounts) phase(ended, begun bool) v1.PodPhase {
	switch {
	case n.initFailed > 0:
		return v1.PodFailed
	case n.pendingInit > 0, n.pendingSidecar > 0 && !begun, n.waiting > 0:
		return v1.PodPending
	case n.running > 0 && n.unknown == 0:
		return v1.PodRunning
	case n.running == 0 && n.stopped > 0 && n.unknown == 0:
		if !ended && n.stopped != n.final {
			return v1.PodRunning
		}
		if n.stopped == n.succeeded {
			return v1.PodSucceeded
		}
		return v1.PodFailed
	}
	return v1.PodPending
}
