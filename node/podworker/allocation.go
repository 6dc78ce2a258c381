package podworker

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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
	// Release takes back what the pod has.
	Release(uid types.UID)
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
