package cgroup

import (
	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Values the kernel sets: the fewest shares, the shortest quota, the usual period.
const (
	minShares = 2
	maxShares = 262144
	minQuota  = 1000
	// Period is the CFS period in microseconds.
	Period = 100000
)

// Shares is the CPU weight for a request in thousandths of a CPU.
func Shares(milli int64) uint64 {
	if milli <= 0 {
		return minShares
	}
	return uint64(min(max(milli*1024/1000, minShares), maxShares))
}

// Quota is the CPU time a period for a limit in thousandths of a CPU; 0: none.
func Quota(milli int64) int64 {
	if milli <= 0 {
		return 0
	}
	return max(milli*Period/1000, minQuota)
}

// ForPod are the limits of a pod's group: its requests as CPU weight; quota and
// memory only where every container has a limit, so that none is held back by
// another's.
func ForPod(pod *v1.Pod, qos v1.PodQOSClass, pids int64) Limits {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	l := Limits{CPUShares: Shares(requests.Cpu().MilliValue()), CPUPeriod: Period, CPUQuota: -1, Memory: -1, PIDs: pids}
	if qos == v1.PodQOSBestEffort {
		l.CPUShares = minShares
		return l
	}
	cpu, memory := limited(pod, v1.ResourceCPU), limited(pod, v1.ResourceMemory)
	if cpu {
		l.CPUQuota = Quota(limits.Cpu().MilliValue())
	}
	if memory {
		l.Memory = limits.Memory().Value()
	}
	return l
}

// Raised returns the limits of to that are wider than those of from, and leaves the rest as it is. A group gets them before the
// groups inside it grow; the whole of to is for after the groups inside it have shrunk.
func Raised(from, to Limits) Limits {
	out := Limits{CPUPeriod: to.CPUPeriod}
	if wider(to.CPUQuota, from.CPUQuota) {
		out.CPUQuota = to.CPUQuota
	}
	if wider(to.Memory, from.Memory) {
		out.Memory = to.Memory
	}
	return out
}

// wider reports whether limit a allows more than b; a negative one allows everything.
func wider(a, b int64) bool { return b >= 0 && (a < 0 || a > b) }

// limited reports whether the pod, or every container of it, has a limit.
func limited(pod *v1.Pod, r v1.ResourceName) bool {
	if pod.Spec.Resources != nil {
		if q, ok := pod.Spec.Resources.Limits[r]; ok && !q.IsZero() {
			return true
		}
	}
	for _, cs := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range cs {
			if q, ok := cs[i].Resources.Limits[r]; !ok || q.IsZero() {
				return false
			}
		}
	}
	return true
}
