package node

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/cpumanager"
	"github.com/balsahq/balsa/node/cri"
	"github.com/balsahq/balsa/node/podworker"
)

// cpusetInterval is how often the CPUs of running containers are looked at though no event asks for it.
const cpusetInterval = 10 * time.Second

// nudgeCPUSets makes keepCPUSets look at the containers.
func (a *Agent) nudgeCPUSets() {
	select {
	case a.cpusetsStale <- struct{}{}:
	default:
	}
}

// keepCPUSets has the running containers run on the CPUs that are theirs: their own, or the pool, which shrinks when another
// container gets CPUs for itself. A container is told again when it is new, because the pool may have changed since its
// configuration was made.
func (a *Agent) keepCPUSets(ctx context.Context) {
	if a.cfg.Allocation.CPUs != cpumanager.Static {
		return
	}
	applied := map[string]string{} // CPUs by container ID
	for {
		fault.Point("node/cpusets")
		a.applyCPUSets(ctx, applied)
		t := time.NewTimer(cpusetInterval)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-a.cpusetsStale:
		case <-t.C:
		}
		t.Stop()
	}
}

// applyCPUSets sends the runtime the CPU sets that have changed since the last call. A failed update is tried again at the
// next call.
func (a *Agent) applyCPUSets(ctx context.Context, applied map[string]string) {
	there := map[string]bool{}
	for uid, v := range a.viewsByUID() {
		for id, c := range v.Containers {
			if !c.Running {
				continue
			}
			there[id] = true
			want := a.cpus.For(uid, c.Name).String()
			if applied[id] == want {
				continue
			}
			err := a.runtime.UpdateContainerResources(ctx, id, &runtimeapi.ContainerResources{Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: want}})
			switch {
			case err == nil:
				applied[id] = want
			case ctx.Err() == nil && !cri.NotFound(err):
				a.log.Warn("the CPUs of a container cannot be set; they are tried again", "pod", uid, "container", c.Name, "cpus", want, "err", err)
			}
		}
	}
	for id := range applied {
		if !there[id] {
			delete(applied, id)
		}
	}
}

// viewsByUID returns how the pods stand.
func (a *Agent) viewsByUID() map[types.UID]*podworker.View {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[types.UID]*podworker.View, len(a.workers))
	for uid, w := range a.workers {
		out[uid] = w.View()
	}
	return out
}
