package criconfig

import (
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	v1helper "k8s.io/kubernetes/pkg/apis/core/v1/helper"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"

	"github.com/balsahq/balsa/node/cgroup"
)

// linuxResources translates CPU and memory. A limit that is nil or zero means unlimited; a missing request is the limit.
func linuxResources(cpuRequest, cpuLimit, memoryLimit *resource.Quantity) *runtimeapi.LinuxContainerResources {
	if cpuRequest == nil || cpuRequest.IsZero() && cpuLimit != nil && !cpuLimit.IsZero() {
		cpuRequest = cpuLimit
	}
	r := &runtimeapi.LinuxContainerResources{CpuPeriod: cgroup.Period, CpuShares: 2}
	if cpuRequest != nil {
		r.CpuShares = int64(cgroup.Shares(cpuRequest.MilliValue()))
	}
	if cpuLimit != nil {
		r.CpuQuota = cgroup.Quota(cpuLimit.MilliValue())
	}
	if memoryLimit != nil {
		r.MemoryLimitInBytes = memoryLimit.Value()
	}
	return r
}

// ContainerResources are the limits of one container's cgroup, and the score
// by which the kernel chooses what it kills when memory runs out.
func ContainerResources(pod *v1.Pod, c *v1.Container, memoryCapacity int64) *runtimeapi.LinuxContainerResources {
	cpuLimit, memoryLimit := c.Resources.Limits.Cpu(), c.Resources.Limits.Memory()
	if p := pod.Spec.Resources; p != nil {
		if cpuLimit.IsZero() {
			cpuLimit = p.Limits.Cpu()
		}
		if memoryLimit.IsZero() {
			memoryLimit = p.Limits.Memory()
		}
	}
	var request *resource.Quantity
	if q, ok := c.Resources.Requests[v1.ResourceCPU]; ok {
		request = &q
	}
	r := linuxResources(request, cpuLimit, memoryLimit)
	r.OomScoreAdj = oomScore(pod, c, memoryCapacity)
	r.HugepageLimits = hugepageLimits(pod, c)
	return r
}

func podResources(pod *v1.Pod) *runtimeapi.LinuxContainerResources {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{ExcludeOverhead: true})
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{ExcludeOverhead: true})
	return linuxResources(requests.Cpu(), limits.Cpu(), limits.Memory())
}

const (
	oomGuaranteed = -997
	oomBestEffort = 1000
)

// oomScore returns a container's oom_score_adj by upstream's rules. The smaller the memory request is, the higher is the score,
// and the earlier the kernel kills the container: best-effort pods first, guaranteed pods last.
func oomScore(pod *v1.Pod, c *v1.Container, memoryCapacity int64) int64 {
	if pod.Spec.PriorityClassName == "system-node-critical" {
		return oomGuaranteed
	}
	switch v1qos.GetPodQOS(pod) {
	case v1.PodQOSGuaranteed:
		return oomGuaranteed
	case v1.PodQOSBestEffort:
		return oomBestEffort
	}
	if memoryCapacity <= 0 {
		return oomBestEffort - 1
	}
	request := c.Resources.Requests.Memory().Value()
	if podutil.IsRestartableInitContainer(c) {
		request = max(request, leastMemory(pod.Spec.Containers)) // it is not killed before the containers that it serves
	}
	score := 1000 - 1000*(request+unsharedMemory(pod))/memoryCapacity
	return min(max(score, 1000+oomGuaranteed), oomBestEffort-1)
}

// leastMemory returns the smallest memory request among the containers.
func leastMemory(cs []v1.Container) int64 {
	var least int64
	for i := range cs {
		if q := cs[i].Resources.Requests.Memory().Value(); i == 0 || q < least {
			least = q
		}
	}
	return least
}

// unsharedMemory returns each container's share of the pod's memory request that the containers' own requests leave (KEP-2837).
func unsharedMemory(pod *v1.Pod) int64 {
	if pod.Spec.Resources == nil || pod.Spec.Resources.Requests.Memory().IsZero() {
		return 0
	}
	own := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	left := pod.Spec.Resources.Requests.Memory().Value() - own.Memory().Value()
	return left / int64(len(pod.Spec.Containers)+len(pod.Spec.InitContainers))
}

// hugepageLimits returns a limit for each page size that the kernel has, zero for sizes that the container does not ask for.
func hugepageLimits(pod *v1.Pod, c *v1.Container) []*runtimeapi.HugepageLimit {
	var out []*runtimeapi.HugepageLimit
	asked := map[string]uint64{}
	read := func(l v1.ResourceList) {
		for name, q := range l {
			if !v1helper.IsHugePageResourceName(name) {
				continue
			}
			if size, err := v1helper.HugePageSizeFromResourceName(name); err == nil {
				if unit, err := v1helper.HugePageUnitSizeFromByteSize(size.Value()); err == nil {
					asked[unit] = uint64(q.Value())
				}
			}
		}
	}
	if pod.Spec.Resources != nil {
		read(pod.Spec.Resources.Limits)
	}
	read(c.Resources.Limits)
	for _, bytes := range HugepageSizes() {
		unit, err := v1helper.HugePageUnitSizeFromByteSize(bytes)
		if err != nil {
			continue
		}
		out = append(out, &runtimeapi.HugepageLimit{PageSize: unit, Limit: asked[unit]})
	}
	return out
}

const HugepagesDir = "/sys/kernel/mm/hugepages"

// HugepageSizes lists the page sizes of the kernel in bytes.
func HugepageSizes() []int64 {
	entries, _ := os.ReadDir(HugepagesDir)
	var out []int64
	for _, e := range entries {
		s, ok := strings.CutPrefix(e.Name(), "hugepages-")
		s, ok2 := strings.CutSuffix(s, "kB")
		if q, err := resource.ParseQuantity(s + "Ki"); ok && ok2 && err == nil {
			out = append(out, q.Value())
		}
	}
	return out
}
