package node

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	kubelettypes "k8s.io/kubelet/pkg/types"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/cgroup"
	"github.com/balsahq/balsa/node/cri"
	"github.com/balsahq/balsa/node/eviction"
	"github.com/balsahq/balsa/node/images"
	"github.com/balsahq/balsa/node/memoryevents"
	"github.com/balsahq/balsa/node/podloop"
)

// measureTimeout bounds a call to the runtime while the node runs short: a runtime that hangs must not keep the conditions
// from being set.
const measureTimeout = 10 * time.Second

// left observes what the machine, and the pods of their memory limit, have left.
func (a *Agent) left(ctx context.Context) eviction.Observations {
	if a.imageFs == "" {
		asking, cancel := context.WithTimeout(ctx, measureTimeout)
		defer cancel()
		path, err := images.MountPoint(asking, a.images)
		if err != nil && ctx.Err() == nil {
			a.log.Warn("the runtime does not say where images are; their file system is not observed until it does", "err", err)
		}
		a.imageFs = path
	}
	return a.leftOf(a.imageFs)
}

// leftOf is left without a call to the runtime.
func (a *Agent) leftOf(imageFs string) eviction.Observations {
	out := a.stats.Left(imageFs)
	if m, err := a.cgroups.AllPods(); err == nil && m.Limit > 0 {
		out[eviction.AllocatableMemoryAvailable] = eviction.Observation{Available: m.Limit - m.WorkingSet, Capacity: m.Limit, At: time.Now()}
	}
	return out
}

func (a *Agent) separateImages() bool { return a.stats.SeparateImages(a.imageFs) }

// measure returns what pods use of what t is about.
func (a *Agent) measure(ctx context.Context, t eviction.Threshold) (map[types.UID]*statsv1.PodStats, error) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	switch {
	case t.Signal.OfPIDs():
		out := map[types.UID]*statsv1.PodStats{}
		for uid, v := range a.views() {
			if n, err := a.cgroups.Processes(uid, v1qos.GetPodQOS(v.Pod)); err == nil {
				count := uint64(n)
				out[uid] = &statsv1.PodStats{ProcessStats: &statsv1.ProcessStats{ProcessCount: &count}}
			}
		}
		return out, nil
	case t.Signal.OfDisk():
		sum, err := a.stats.Summary(ctx)
		if err != nil {
			return nil, err
		}
		out := map[types.UID]*statsv1.PodStats{}
		for i := range sum.Pods {
			out[types.UID(sum.Pods[i].PodRef.UID)] = &sum.Pods[i]
		}
		return out, nil
	}
	return a.stats.Memory(ctx)
}

// reclaim gives up what belongs to no running pod. It reports whether that was enough.
func (e *evictor) reclaim(ctx context.Context, t eviction.Threshold) bool {
	steps := eviction.NodeLevel(t, e.separateImages())
	enough := func() bool { return eviction.Satisfied(t, e.observe(ctx)) }
	for _, step := range steps {
		var err error
		switch step {
		case eviction.DeadContainers:
			err = e.removeDeadContainers(ctx)
		case eviction.UnusedImages:
			err = e.collector.CollectUntil(ctx, enough)
		}
		if err != nil && ctx.Err() == nil {
			e.log.Warn("nothing can be reclaimed of "+string(step)+"; a pod may have to go instead", "err", err)
		}
	}
	return len(steps) > 0 && enough()
}

// removeDeadContainers removes the containers of pods that have ended, and their logs. The pods' statuses stay as they are.
func (a *Agent) removeDeadContainers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	ended := map[types.UID]map[string]string{} // the logs, by container
	for uid, v := range a.views() {
		if !v.TornDown || !podloop.IsTerminal(v.Pod.Status.Phase) {
			continue
		}
		ended[uid] = map[string]string{}
		for id, c := range v.Containers {
			ended[uid][id] = c.LogPath
		}
	}
	if len(ended) == 0 {
		return nil
	}
	all, err := a.runtime.ListContainers(ctx, nil)
	if err != nil {
		return err
	}
	removed := false
	for _, c := range all {
		logs, ok := ended[types.UID(c.Labels[kubelettypes.KubernetesPodUIDLabel])]
		if !ok || c.State != runtimeapi.ContainerState_CONTAINER_EXITED {
			continue
		}
		if err := a.runtime.RemoveContainer(ctx, c.Id); err != nil && !cri.NotFound(err) {
			return err
		}
		removed = true
		if path := logs[c.Id]; path != "" {
			files, _ := filepath.Glob(path + "*")
			for _, f := range files {
				_ = os.Remove(f)
			}
		}
	}
	if removed {
		a.relist(ctx)
	}
	return nil
}

// watchMemory calls tell when the machine, or the pods within their limit, get short of memory, until ctx ends.
func (a *Agent) watchMemory(ctx context.Context, groups *cgroup.Manager, tell func()) {
	const unit = "node/memory events"
	watch := func(s eviction.Signal, g memoryevents.Group) func() {
		return func() {
			for ctx.Err() == nil {
				if err := a.awaitEvent(ctx, s, g, tell); err != nil && ctx.Err() == nil {
					a.log.Info("the kernel does not tell when memory gets short; it is measured every "+evictInterval.String(), "signal", s, "err", err)
					return
				}
			}
		}
	}
	pods := memoryevents.Group{Dir: groups.MemoryDir(), Pressure: filepath.Join(groups.MemoryDir(), "memory.pressure"), Unified: groups.Unified()}
	done := make(chan struct{})
	go fault.Contained(unit, func() { defer close(done); watch(eviction.AllocatableMemoryAvailable, pods)() })()
	watch(eviction.MemoryAvailable, memoryevents.Group{Dir: groups.MachineDir(), Pressure: "/proc/pressure/memory", Unified: groups.Unified()})()
	<-done
}

// awaitEvent waits for one event, for evictInterval at most: as the part of the memory that is easily given back changes, so
// does the usage at which memory is short.
func (a *Agent) awaitEvent(ctx context.Context, s eviction.Signal, g memoryevents.Group, tell func()) error {
	left, ok := a.cfg.Eviction.Distance(s, a.leftOf(""))
	if !ok {
		pause(ctx, evictInterval) // it is short already, or has no threshold
		return nil
	}
	w, err := memoryevents.New(g, left)
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, evictInterval)
	defer cancel()
	stop := context.AfterFunc(waiting, func() { _ = w.Close() })
	defer stop()
	err = w.Wait()
	if waiting.Err() != nil {
		return nil
	}
	_ = w.Close()
	if err == nil {
		tell()
		pause(ctx, minEventPeriod)
	}
	return err
}
