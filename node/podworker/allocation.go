package podworker

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/node/cgroup"
	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/podloop"
)

// RejectedPrefix begins the status message of a pod that the node refuses. The message of its event has no prefix. Both are
// upstream's.
const RejectedPrefix = "Pod was rejected: "

// Allocator gives pods what they have for themselves of the machine, such as devices.
type Allocator interface {
	// Wants reports whether the pod has to be admitted before anything of it is started.
	Wants(pod *v1.Pod) bool
	// Admit allocates, or returns why the pod cannot run here. It may wait for other pods and programs.
	Admit(ctx context.Context, pod *v1.Pod) *podloop.Failure
	// ForContainer returns what a container that is about to start has got.
	ForContainer(ctx context.Context, pod *v1.Pod, c *v1.Container) (criconfig.Allocation, error)
	// Health returns the devices of a container with their health; nil: it has none.
	Health(uid types.UID, container string) []v1.ResourceStatus
	// HasExclusiveCPUs reports whether a container has CPUs for itself; with an empty name, whether any of the pod has.
	HasExclusiveCPUs(uid types.UID, container string) bool
	// Release takes back what the pod has.
	Release(uid types.UID)
}

// podLimits returns the limits of the pod's cgroup. A container with CPUs of its own is not held back by a quota: it could not
// use them all.
func (h *Host) podLimits(pod *v1.Pod, qos v1.PodQOSClass) cgroup.Limits {
	l := cgroup.ForPod(pod, qos, h.PodPIDs)
	if h.Allocator.HasExclusiveCPUs(pod.UID, "") {
		l.CPUQuota = -1
	}
	return l
}

// containerResources returns the limits of a running container's cgroup.
func (h *Host) containerResources(pod *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources {
	r := criconfig.ContainerResources(pod, c, h.MemoryCapacity)
	if h.Allocator.HasExclusiveCPUs(pod.UID, c.Name) {
		r.CpuQuota = -1
	}
	return r
}

// allocateResources has the pod admitted. A pod that is refused fails.
func (w *Worker) allocateResources() operation {
	pod := w.pod
	return func(ctx context.Context) func() {
		refused := w.host.Allocator.Admit(ctx, pod)
		switch {
		case ctx.Err() != nil:
			return func() {}
		case refused == nil:
			return func() { w.observed.Unallocated = false }
		}
		w.host.Events.Event(pod, v1.EventTypeWarning, refused.Reason, refused.Message)
		return func() {
			if w.observed.Failed == nil {
				w.observed.Failed = &podloop.Failure{Reason: refused.Reason, Message: RejectedPrefix + refused.Message}
			}
		}
	}
}
