package node

import (
	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/node/podloop"
)

// NewOrphan returns the worker of a pod that runs here and that the API no longer knows: it ends the pod.
func NewOrphan(h *Host, pod *v1.Pod, o *podloop.Observed) *worker {
	w := newWorker(h, pod)
	w.Adopt(o)
	w.o.Gone = true
	return w
}
