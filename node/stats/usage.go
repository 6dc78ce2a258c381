package stats

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Counter is what a container or the node has used up to a moment.
type Counter struct {
	At time.Time
	// Started is when the container began to run; zero when that is not known.
	Started time.Time
	// CPU is the processor time since then, in nanoseconds.
	CPU uint64
	// Memory is the working set, in bytes.
	Memory uint64
}

// PodUsage holds the counters of a pod's containers that run, by name.
type PodUsage struct {
	Namespace, Name string
	Containers      map[string]Counter
}

// Usage is one sample of the node and its pods.
type Usage struct {
	// Node is nil when the kernel's files cannot be read.
	Node *Counter
	Pods map[types.UID]PodUsage
}

// Usage samples processor time and memory now. It is the cheap part of Summary: it looks at no disk and no network. It
// fails when the runtime does not answer.
func (p *Provider) Usage(ctx context.Context) (Usage, error) {
	list, err := p.cfg.Runtime.ListContainerStats(ctx, &runtimeapi.ContainerStatsFilter{})
	if err != nil {
		return Usage{}, fmt.Errorf("statistics of the container runtime: %w", err)
	}
	now := time.Now()
	containers := map[types.UID][]*runtimeapi.ContainerStats{}
	for _, c := range list {
		uid := types.UID(c.GetAttributes().GetLabels()[podUIDLabel])
		containers[uid] = append(containers[uid], c)
	}
	out := Usage{Node: p.nodeCounter(now), Pods: map[types.UID]PodUsage{}}
	for _, pod := range p.cfg.Pods() {
		if counters := podCounters(pod, containers[pod.UID], now); len(counters) > 0 {
			out.Pods[pod.UID] = PodUsage{Namespace: pod.Namespace, Name: pod.Name, Containers: counters}
		}
	}
	return out, nil
}

func (p *Provider) nodeCounter(now time.Time) *Counter {
	nanos, err := p.nodeCPU()
	if err != nil {
		return nil
	}
	info, err := p.meminfo()
	if err != nil {
		return nil
	}
	memory, _ := nodeMemory(info, now)
	return &Counter{At: now, CPU: nanos, Memory: *memory.WorkingSetBytes}
}

// podCounters leaves out containers of which the runtime says nothing: they do not run.
func podCounters(pod *v1.Pod, list []*runtimeapi.ContainerStats, now time.Time) map[string]Counter {
	out := map[string]Counter{}
	for _, c := range newest(list) {
		cpu, memory := c.GetCpu().GetUsageCoreNanoSeconds(), c.GetMemory().GetWorkingSetBytes()
		if cpu == nil || memory == nil {
			continue
		}
		name := c.GetAttributes().GetMetadata().GetName()
		out[name] = Counter{
			At: timeOf(c.GetCpu().GetTimestamp(), now).Time, Started: runningSince(pod, name), CPU: cpu.GetValue(), Memory: memory.GetValue(),
		}
	}
	return out
}

// runningSince returns when a container began to run, and zero when it does not.
func runningSince(pod *v1.Pod, name string) time.Time {
	for _, list := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name && list[i].State.Running != nil {
				return list[i].State.Running.StartedAt.Time
			}
		}
	}
	return time.Time{}
}
