package cpumanager

import (
	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
)

// Request returns how many CPUs of its own the container is to have: its whole CPUs when the pod is Guaranteed. A pod with
// resources of its own (spec.resources) gets none, as upstream.
func Request(pod *v1.Pod, c *v1.Container) int {
	if pod.Spec.Resources != nil || v1qos.GetPodQOS(pod) != v1.PodQOSGuaranteed {
		return 0
	}
	q := c.Resources.Requests[v1.ResourceCPU]
	if q.Value()*1000 != q.MilliValue() {
		return 0
	}
	return int(q.Value())
}

// podRequest returns how many CPUs of their own the containers of a pod have at the same time, at most.
func podRequest(pod *v1.Pod) int {
	sidecars, initial, regular := 0, 0, 0
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if podutil.IsRestartableInitContainer(c) {
			sidecars += Request(pod, c)
		} else {
			initial = max(initial, sidecars+Request(pod, c))
		}
	}
	for i := range pod.Spec.Containers {
		regular += Request(pod, &pod.Spec.Containers[i])
	}
	return max(initial, sidecars+regular)
}
