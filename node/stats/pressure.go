package stats

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/balsahq/balsa/node/eviction"
)

// Left observes how much of everything the machine has left. It reads a few files and adds up no directory. imageFs is a
// path on the file system of images; "" leaves its signals out, as does anything else that cannot be read.
func (p *Provider) Left(imageFs string) eviction.Observations {
	now := time.Now()
	out := eviction.Observations{}
	if info, err := p.meminfo(); err == nil {
		m, _ := nodeMemory(info, now)
		out[eviction.MemoryAvailable] = eviction.Observation{Available: int64(*m.AvailableBytes), Capacity: int64(info["MemTotal"]), At: now}
	}
	disk := func(path string, space, inodes eviction.Signal) {
		fs := p.filesystem(path, now)
		if fs == nil {
			return
		}
		out[space] = eviction.Observation{Available: int64(*fs.AvailableBytes), Capacity: int64(*fs.CapacityBytes), At: now}
		if *fs.Inodes > 0 { // some file systems make inodes as they need them and show none
			out[inodes] = eviction.Observation{Available: int64(*fs.InodesFree), Capacity: int64(*fs.Inodes), At: now}
		}
	}
	disk(p.cfg.RootDir, eviction.NodeFsAvailable, eviction.NodeFsInodesFree)
	disk(imageFs, eviction.ImageFsAvailable, eviction.ImageFsInodesFree)
	if r := p.rlimit(now); r.MaxPID != nil && r.NumOfRunningProcesses != nil {
		out[eviction.PIDAvailable] = eviction.Observation{Available: *r.MaxPID - *r.NumOfRunningProcesses, Capacity: *r.MaxPID, At: now}
	}
	return out
}

// SeparateImages reports whether imageFs is on another file system than the agent's directory.
func (p *Provider) SeparateImages(imageFs string) bool {
	a, err := os.Stat(p.cfg.RootDir)
	if err != nil {
		return false
	}
	b, err := os.Stat(imageFs)
	if err != nil {
		return false
	}
	return a.Sys().(*syscall.Stat_t).Dev != b.Sys().(*syscall.Stat_t).Dev
}

// Memory measures the memory of all pods and their containers, and nothing else: it looks at no disk.
func (p *Provider) Memory(ctx context.Context) (map[types.UID]*statsv1.PodStats, error) {
	list, err := p.cfg.Runtime.ListContainerStats(ctx, &runtimeapi.ContainerStatsFilter{})
	if err != nil {
		return nil, fmt.Errorf("statistics of the container runtime: %w", err)
	}
	now := time.Now()
	containers := map[types.UID][]*runtimeapi.ContainerStats{}
	for _, c := range list {
		uid := types.UID(c.GetAttributes().GetLabels()[podUIDLabel])
		containers[uid] = append(containers[uid], c)
	}
	out := map[types.UID]*statsv1.PodStats{}
	for uid, cs := range containers {
		s := &statsv1.PodStats{}
		for _, c := range newest(cs) {
			s.Containers = append(s.Containers, statsv1.ContainerStats{Name: c.GetAttributes().GetMetadata().GetName(), Memory: memory(c.GetMemory(), now)})
		}
		s.Memory = sumMemory(s.Containers, now)
		out[uid] = s
	}
	return out, nil
}
