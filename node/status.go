package node

import (
	"sort"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
)

// statusInput is everything a pod's status follows from.
type statusInput struct {
	Pod         *v1.Pod // with the newest status the API has
	O           *observed
	D           decision
	HostIPs     []string
	RuntimeName string // prefix of container IDs, such as "containerd"
	RRO         bool   // the runtime handler can mount read-only recursively
}

// podStatus builds the status to report. Pure; it never leaves a terminal phase.
func podStatus(in statusInput) v1.PodStatus {
	old := &in.Pod.Status
	s := *old.DeepCopy()
	s.ObservedGeneration = in.Pod.Generation
	s.QOSClass = v1qos.GetPodQOS(in.Pod)
	if s.StartTime == nil && !in.O.StartTime.IsZero() {
		t := metav1.NewTime(in.O.StartTime)
		s.StartTime = &t
	}
	if f := in.O.Failed; f != nil && len(in.O.Containers) == 0 && in.O.Sandbox == nil {
		// Never started: nothing is known of its containers.
		s.Phase, s.Reason, s.Message = v1.PodFailed, f.Reason, f.Message
		setIPs(in, &s)
		s.Conditions = conditions(in, &s)
		return s
	}
	s.InitContainerStatuses = statusesOf(in, in.Pod.Spec.InitContainers, kindInit)
	s.ContainerStatuses = statusesOf(in, in.Pod.Spec.Containers, kindRegular)
	s.EphemeralContainerStatuses = ephemeralStatuses(in)
	sort.Slice(s.ContainerStatuses, func(i, j int) bool { return s.ContainerStatuses[i].Name < s.ContainerStatuses[j].Name })
	if in.D.Stopped {
		settle(in, &s)
	}
	s.Phase = phase(in, &s)
	if f := in.O.Failed; f != nil {
		s.Phase, s.Reason, s.Message = v1.PodFailed, f.Reason, f.Message
	}
	if terminalPhase(old.Phase) {
		s.Phase = old.Phase
	} else if !in.D.Stopped && terminalPhase(s.Phase) && in.O.Failed == nil && in.D.Stopping {
		// A sidecar still runs: the phase becomes terminal with the last container.
		if anyRunning(in.O) {
			s.Phase = v1.PodRunning
		}
	}
	setIPs(in, &s)
	s.Conditions = conditions(in, &s)
	return s
}

func terminalPhase(p v1.PodPhase) bool { return p == v1.PodFailed || p == v1.PodSucceeded }

func anyRunning(o *observed) bool {
	for _, ins := range o.Containers {
		for _, in := range ins {
			if in.State == stateRunning {
				return true
			}
		}
	}
	return false
}

// settle gives every container of a pod that has ended a final state.
func settle(in statusInput, s *v1.PodStatus) {
	lost := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		Reason:   "ContainerStatusUnknown",
		Message:  "The container could not be located when the pod was terminated",
		ExitCode: 137,
	}}
	if initialized(in, s) {
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

func initialized(in statusInput, s *v1.PodStatus) bool {
	if len(in.Pod.Spec.InitContainers) == 0 {
		return true
	}
	for i := range in.Pod.Spec.Containers {
		if len(in.O.Containers[in.Pod.Spec.Containers[i].Name]) > 0 {
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

func setIPs(in statusInput, s *v1.PodStatus) {
	if len(in.HostIPs) > 0 {
		s.HostIP = in.HostIPs[0]
		s.HostIPs = nil
		for _, ip := range in.HostIPs {
			s.HostIPs = append(s.HostIPs, v1.HostIP{IP: ip})
		}
	}
	ips := podIPs(in.Pod, in.O, in.HostIPs)
	if len(ips) == 0 {
		return
	}
	s.PodIP, s.PodIPs = ips[0], nil
	for _, ip := range ips {
		s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip})
	}
}

// podIPs are the pod's addresses: its sandbox's, or the host's.
func podIPs(pod *v1.Pod, o *observed, hostIPs []string) []string {
	if pod.Spec.HostNetwork {
		return hostIPs
	}
	if o.Sandbox == nil {
		return nil
	}
	return o.Sandbox.IPs
}

// counts is what the phase follows from.
type counts struct {
	pendingInit, pendingSidecar, initFailed       int
	unknown, running, waiting, stopped, succeeded int
	final                                         int // stopped for good
}

func phase(in statusInput, s *v1.PodStatus) v1.PodPhase {
	var n counts
	for i := range in.Pod.Spec.InitContainers {
		n.addInit(in.Pod, &in.Pod.Spec.InitContainers[i], s.InitContainerStatuses)
	}
	for i := range in.Pod.Spec.Containers {
		n.addRegular(in.Pod, &in.Pod.Spec.Containers[i], s.ContainerStatuses)
	}
	p := n.phase(in.D.Stopped, anyRegular(in.Pod, in.O))
	if in.D.Stopped && !terminalPhase(p) {
		return v1.PodFailed
	}
	return p
}

func (n *counts) addInit(pod *v1.Pod, c *v1.Container, sts []v1.ContainerStatus) {
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
	case t.ExitCode != 0 && !restarts(pod, c, t.ExitCode):
		n.initFailed++
	case t.ExitCode != 0:
		n.pendingInit++
	case st.State.Terminated == nil:
		n.pendingInit++
	}
}

func (n *counts) addSidecar(st v1.ContainerStatus, ok bool) {
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

func (n *counts) addRegular(pod *v1.Pod, c *v1.Container, sts []v1.ContainerStatus) {
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
	if !restarts(pod, c, t.ExitCode) {
		n.final++
	}
	if now && t.ExitCode == 0 {
		n.succeeded++
	}
}

func (n *counts) phase(ended, begun bool) v1.PodPhase {
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
