package node

import (
	"context"
	"sort"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/balsahq/balsa/node/cri"
	"github.com/balsahq/balsa/node/kubeletapi"
	"github.com/balsahq/balsa/node/podworker"
	"github.com/balsahq/balsa/node/stats"
)

// The kubelet API serves what the Agent knows.
var _ kubeletapi.Backend = (*Agent)(nil)

// Connected returns a channel that is closed once the runtime answers and what runs in it is known. Runtime must not be used
// before.
func (a *Agent) Connected() <-chan struct{} { return a.connected }

// Pods returns the pods bound to this node, with the newest status that the agent knows, by namespace and name; read-only.
func (a *Agent) Pods() []*v1.Pod {
	views := a.views()
	out := make([]*v1.Pod, 0, len(views))
	for _, v := range views {
		out = append(out, v.Pod)
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Namespace != out[j].Namespace {
			return out[i].Namespace < out[j].Namespace
		}
		return out[i].Name < out[j].Name
	})
	return out
}

// Pod returns a pod by its name, the younger one of two pods that have the same name.
func (a *Agent) Pod(namespace, name string) (*v1.Pod, bool) {
	var found *v1.Pod
	for _, v := range a.views() {
		p := v.Pod
		if p.Namespace == namespace && p.Name == name && (found == nil || found.CreationTimestamp.Before(&p.CreationTimestamp)) {
			found = p
		}
	}
	return found, found != nil
}

// RunningPods returns the pods that the runtime runs, also those that the API does not have.
func (a *Agent) RunningPods(ctx context.Context) ([]*v1.Pod, error) {
	all, err := cri.ListPods(ctx, a.runtime)
	if err != nil {
		return nil, err
	}
	var out []*v1.Pod
	for uid, f := range all {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: f.Name, Namespace: f.Namespace, UID: uid}}
		for _, c := range f.Containers {
			if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
				p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: c.Labels[kubelettypes.KubernetesContainerNameLabel], Image: c.ImageRef})
			}
		}
		if len(p.Spec.Containers) > 0 {
			out = append(out, p)
		}
	}
	return out, nil
}

// SandboxID returns the ID of the pod's ready sandbox; false when it has none.
func (a *Agent) SandboxID(uid types.UID) (string, bool) {
	w := a.worker(uid)
	if w == nil {
		return "", false
	}
	id := w.View().SandboxID
	return id, id != ""
}

// Runtime returns the container runtime; see Connected.
func (a *Agent) Runtime() kubeletapi.Runtime { return a.runtime }

// Summary returns the statistics of the node and its pods.
func (a *Agent) Summary(ctx context.Context) (*statsv1.Summary, error) {
	select {
	case <-a.connected:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return a.stats.Summary(ctx)
}

// Usage samples how much processor time and memory the node and its pods use.
func (a *Agent) Usage(ctx context.Context) (stats.Usage, error) {
	select {
	case <-a.connected:
	case <-ctx.Done():
		return stats.Usage{}, ctx.Err()
	}
	return a.stats.Usage(ctx)
}

// Configz returns the agent's configuration with the field names of a kubelet's.
func (a *Agent) Configz() any {
	return map[string]any{
		"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
		"maxPods": a.cfg.MaxPods, "clusterDNS": a.cfg.ClusterDNS, "clusterDomain": a.cfg.ClusterDomain,
		"cgroupDriver": "cgroupfs", "cgroupRoot": "/", "containerLogMaxSize": a.cfg.LogMaxSize, "containerLogMaxFiles": a.cfg.LogMaxFiles,
		"imageGCHighThresholdPercent": a.cfg.ImageGCHigh, "imageGCLowThresholdPercent": a.cfg.ImageGCLow,
		"allowedUnsafeSysctls": a.cfg.AllowedUnsafeSysctls,
		"seccompDefault":       a.cfg.SeccompDefault,
		"podPidsLimit":         a.cfg.PodPIDs, "staticPodPath": a.cfg.StaticPodDir, "containerRuntimeEndpoint": a.cfg.RuntimeEndpoint,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true},
			"x509": map[string]any{"clientCAFile": "the cluster's CA"},
		},
		"authorization": map[string]any{"mode": "Webhook"}, "readOnlyPort": 0, "rotateCertificates": true,
		"streamingConnectionIdleTimeout": kubeletapi.StreamIdle.String(),
		"nodeStatusReportFrequency":      statusInterval.String(), "nodeLeaseDurationSeconds": leaseSeconds,
	}
}

// waiters has a channel for each running container, which is closed when the container ends. It has a lock of its own because
// a new worker publishes while Agent.mu is held.
type waiters struct {
	mu   sync.Mutex
	byID map[string]waiter
}

type waiter struct {
	pod  types.UID
	done chan struct{}
}

// ContainerDone returns a channel that is closed once the container does not run. The channel of an unknown container is
// closed already.
func (a *Agent) ContainerDone(id string) <-chan struct{} {
	a.waiting.mu.Lock()
	defer a.waiting.mu.Unlock()
	if w, ok := a.waiting.byID[id]; ok {
		return w.done
	}
	closed := make(chan struct{})
	close(closed)
	return closed
}

// containersChanged makes and closes the channels of a pod's containers when its worker publishes a View, and has the CPUs of
// new containers looked at.
func (a *Agent) containersChanged(uid types.UID, v *podworker.View) {
	a.nudgeCPUSets()
	a.waiting.mu.Lock()
	defer a.waiting.mu.Unlock()
	for id, c := range v.Containers {
		if _, known := a.waiting.byID[id]; c.Running && !known {
			a.waiting.byID[id] = waiter{uid, make(chan struct{})}
		}
	}
	for id, w := range a.waiting.byID {
		if w.pod == uid && !v.Containers[id].Running {
			close(w.done)
			delete(a.waiting.byID, id)
		}
	}
}
