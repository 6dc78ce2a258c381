package stats

import (
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

func isUnimplemented(err error) bool { return status.Code(err) == codes.Unimplemented }

// pod puts together what is known about one pod.
func (p *Provider) pod(pod *v1.Pod, s *runtimeapi.PodSandboxStats, now time.Time) statsv1.PodStats {
	linux := s.GetLinux()
	out := statsv1.PodStats{
		PodRef:     statsv1.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)},
		Containers: []statsv1.ContainerStats{},
		CPU:        p.cpu("pod/"+string(pod.UID), linux.GetCpu(), now),
		Memory:     memory(linux.GetMemory(), now),
		Network:    network(linux.GetNetwork(), now),
	}
	if pod.Status.StartTime != nil {
		out.StartTime = *pod.Status.StartTime
	}
	if n := linux.GetProcess().GetProcessCount(); n != nil {
		out.ProcessStats = &statsv1.ProcessStats{ProcessCount: number(n)}
	}
	logs := filepath.Join(p.cfg.LogRoot, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
	for _, c := range newest(linux.GetContainers()) {
		out.Containers = append(out.Containers, p.container(pod, c, logs, now))
	}
	if out.CPU == nil {
		out.CPU = sumCPU(out.Containers, now)
	}
	if out.Memory == nil {
		out.Memory = sumMemory(out.Containers, now)
	}
	out.VolumeStats = p.volumes(pod, now)
	out.EphemeralStorage = p.ephemeral(&pod.Spec, &out, now)
	return out
}

// newest keeps of the containers of one name the last one that was made.
func newest(list []*runtimeapi.ContainerStats) []*runtimeapi.ContainerStats {
	at := map[string]int{}
	var out []*runtimeapi.ContainerStats
	for _, c := range list {
		meta := c.GetAttributes().GetMetadata()
		i, ok := at[meta.GetName()]
		switch {
		case !ok:
			at[meta.GetName()] = len(out)
			out = append(out, c)
		case out[i].GetAttributes().GetMetadata().GetAttempt() < meta.GetAttempt():
			out[i] = c
		}
	}
	return out
}

func (p *Provider) container(pod *v1.Pod, c *runtimeapi.ContainerStats, logs string, now time.Time) statsv1.ContainerStats {
	name := c.GetAttributes().GetMetadata().GetName()
	out := statsv1.ContainerStats{
		Name:   name,
		CPU:    p.cpu("container/"+c.GetAttributes().GetId(), c.GetCpu(), now),
		Memory: memory(c.GetMemory(), now),
		Logs:   p.directory(filepath.Join(logs, name), now),
	}
	if since := runningSince(pod, name); !since.IsZero() {
		out.StartTime = metav1.NewTime(since)
	}
	if l := c.GetWritableLayer(); l != nil {
		fs := p.filesystem(l.GetFsId().GetMountpoint(), now)
		if fs == nil {
			fs = &statsv1.FsStats{Time: timeOf(l.GetTimestamp(), now)}
		}
		fs.UsedBytes, fs.InodesUsed = number(l.GetUsedBytes()), number(l.GetInodesUsed())
		out.Rootfs = fs
	}
	if s := c.GetSwap(); s != nil {
		out.Swap = &statsv1.SwapStats{Time: timeOf(s.GetTimestamp(), now), SwapAvailableBytes: number(s.GetSwapAvailableBytes()), SwapUsageBytes: number(s.GetSwapUsageBytes())}
	}
	return out
}

// cpu converts a CPU usage; a rate that the runtime leaves out is made of two samples under key.
func (p *Provider) cpu(key string, c *runtimeapi.CpuUsage, now time.Time) *statsv1.CPUStats {
	if c == nil || c.GetUsageCoreNanoSeconds() == nil {
		return nil
	}
	out := &statsv1.CPUStats{Time: timeOf(c.GetTimestamp(), now), UsageCoreNanoSeconds: number(c.GetUsageCoreNanoSeconds()), UsageNanoCores: number(c.GetUsageNanoCores())}
	if out.UsageNanoCores == nil {
		out.UsageNanoCores = p.rate(key, out.Time.Time, *out.UsageCoreNanoSeconds)
	}
	return out
}

func memory(m *runtimeapi.MemoryUsage, now time.Time) *statsv1.MemoryStats {
	if m == nil {
		return nil
	}
	return &statsv1.MemoryStats{
		Time:            timeOf(m.GetTimestamp(), now),
		AvailableBytes:  number(m.GetAvailableBytes()),
		UsageBytes:      number(m.GetUsageBytes()),
		WorkingSetBytes: number(m.GetWorkingSetBytes()),
		RSSBytes:        number(m.GetRssBytes()),
		PageFaults:      number(m.GetPageFaults()),
		MajorPageFaults: number(m.GetMajorPageFaults()),
	}
}

func network(n *runtimeapi.NetworkUsage, now time.Time) *statsv1.NetworkStats {
	if n == nil || n.GetDefaultInterface() == nil {
		return nil
	}
	out := &statsv1.NetworkStats{Time: timeOf(n.GetTimestamp(), now), InterfaceStats: networkInterface(n.GetDefaultInterface())}
	out.Interfaces = append(out.Interfaces, out.InterfaceStats)
	for _, i := range n.GetInterfaces() {
		if i.GetName() != out.Name {
			out.Interfaces = append(out.Interfaces, networkInterface(i))
		}
	}
	return out
}

func networkInterface(i *runtimeapi.NetworkInterfaceUsage) statsv1.InterfaceStats {
	return statsv1.InterfaceStats{
		Name: i.GetName(), RxBytes: number(i.GetRxBytes()), RxErrors: number(i.GetRxErrors()),
		TxBytes: number(i.GetTxBytes()), TxErrors: number(i.GetTxErrors()),
	}
}

func sumCPU(list []statsv1.ContainerStats, now time.Time) *statsv1.CPUStats {
	out := &statsv1.CPUStats{Time: metav1.NewTime(now)}
	for _, c := range list {
		if c.CPU != nil {
			out.UsageCoreNanoSeconds = add(out.UsageCoreNanoSeconds, c.CPU.UsageCoreNanoSeconds)
			out.UsageNanoCores = add(out.UsageNanoCores, c.CPU.UsageNanoCores)
		}
	}
	return out
}

func sumMemory(list []statsv1.ContainerStats, now time.Time) *statsv1.MemoryStats {
	out := &statsv1.MemoryStats{Time: metav1.NewTime(now)}
	for _, c := range list {
		if c.Memory != nil {
			out.UsageBytes = add(out.UsageBytes, c.Memory.UsageBytes)
			out.WorkingSetBytes = add(out.WorkingSetBytes, c.Memory.WorkingSetBytes)
			out.RSSBytes = add(out.RSSBytes, c.Memory.RSSBytes)
		}
	}
	return out
}

// add returns the sum of those that are known.
func add(a, b *uint64) *uint64 {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	sum := *a + *b
	return &sum
}

func number(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	n := v.GetValue()
	return &n
}
