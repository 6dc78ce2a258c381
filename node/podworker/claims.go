package podworker

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/node/criconfig"
)

// Claims gives pods the devices of their ResourceClaims.
type Claims interface {
	// Wants reports whether claims have to be prepared before anything of the pod is started.
	Wants(pod *v1.Pod) bool
	// Prepare has the drivers prepare the devices. It is called again after an error.
	Prepare(ctx context.Context, pod *v1.Pod) error
	// ForContainer adds what a container that is about to start gets of its claims.
	ForContainer(pod *v1.Pod, c *v1.Container, to *criconfig.Allocation) error
	// Health returns the devices of a container with their health; nil: it has none.
	Health(pod *v1.Pod, container string) []v1.ResourceStatus
	// Unprepare takes the devices back. It is called again after an error.
	Unprepare(ctx context.Context, pod types.UID) error
}

// prepareClaims has the pod's claims prepared. If that fails it is tried again after a delay.
func (w *Worker) prepareClaims() operation {
	pod := w.pod
	return func(ctx context.Context) func() {
		err := w.host.Claims.Prepare(ctx, pod)
		if err == nil {
			return func() { w.observed.Unprepared, w.observed.ClaimsRetry = false, nil }
		}
		if ctx.Err() == nil {
			w.host.Events.Eventf(pod, v1.EventTypeWarning, "FailedPrepareDynamicResources", "Failed to prepare dynamic resources: %v", err)
		}
		return w.retryLater(&w.observed.ClaimsRetry, "FailedPrepareDynamicResources", err)
	}
}
