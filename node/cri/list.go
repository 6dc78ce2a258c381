package cri

import (
	"context"
	"sort"

	"k8s.io/apimachinery/pkg/types"
	criapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/podloop"
)

// Pod is what the runtime has of one pod.
type Pod struct {
	Name, Namespace string
	Sandboxes       []*runtimeapi.PodSandboxStatus
	Containers      []*runtimeapi.ContainerStatus
	SandboxOf       map[string]string // sandbox ID by container ID
}

// ListPods returns all sandboxes and containers of the runtime by the UID of their pod. Objects that are removed meanwhile
// are left out.
func ListPods(ctx context.Context, rt criapi.RuntimeService) (map[types.UID]*Pod, error) {
	pods := map[types.UID]*Pod{}
	at := func(labels map[string]string) *Pod {
		uid := types.UID(labels[kubelettypes.KubernetesPodUIDLabel])
		if uid == "" {
			return nil
		}
		if pods[uid] == nil {
			pods[uid] = &Pod{Name: labels[kubelettypes.KubernetesPodNameLabel],
				Namespace: labels[kubelettypes.KubernetesPodNamespaceLabel], SandboxOf: map[string]string{}}
		}
		return pods[uid]
	}
	boxes, err := rt.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, b := range boxes {
		p := at(b.Labels)
		if p == nil {
			continue
		}
		r, err := rt.PodSandboxStatus(ctx, b.Id, false)
		if NotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		p.Sandboxes = append(p.Sandboxes, r.Status)
	}
	cs, err := rt.ListContainers(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, c := range cs {
		p := at(c.Labels)
		if p == nil {
			continue
		}
		r, err := rt.ContainerStatus(ctx, c.Id, false)
		if NotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		p.Containers, p.SandboxOf[c.Id] = append(p.Containers, r.Status), c.PodSandboxId
	}
	return pods, nil
}

// Newest returns the sandbox that was created last, nil when there is none.
func (p *Pod) Newest() *runtimeapi.PodSandboxStatus {
	if len(p.Sandboxes) == 0 {
		return nil
	}
	sort.Slice(p.Sandboxes, func(i, j int) bool { return p.Sandboxes[i].CreatedAt < p.Sandboxes[j].CreatedAt })
	return p.Sandboxes[len(p.Sandboxes)-1]
}

// Observed returns what the runtime says of the pod in the terms of package podloop.
func (p *Pod) Observed() *podloop.Observed {
	o := podloop.NewObserved()
	if b := p.Newest(); b != nil {
		o.Sandbox = criconfig.SandboxOf(b)
	}
	for _, c := range p.Containers {
		o.Merge(criconfig.InstanceOf(c, p.SandboxOf[c.Id]))
	}
	return o
}
