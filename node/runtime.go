package node

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	criapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/cri"
	"github.com/balsahq/balsa/node/podworker"
)

// connect waits until the runtime answers, and sets the agent's fields for it.
func (a *Agent) connect(ctx context.Context) error {
	dial := a.cfg.Connect
	if dial == nil {
		dial = func(ctx context.Context) (criapi.RuntimeService, criapi.ImageManagerService, error) {
			return cri.Dial(ctx, a.cfg.RuntimeEndpoint)
		}
	}
	said, delay := false, notReadyPoll
	for {
		rt, im, err := dial(ctx)
		if err == nil {
			rt, im = cri.Observe(rt, im, a.count.RuntimeCalled)
			var v *runtimeapi.VersionResponse
			if v, err = rt.Version(ctx, "v1"); err == nil {
				a.runtime, a.images, a.runtimeName, a.runtimeVer = rt, im, v.RuntimeName, v.RuntimeVersion
				var st *runtimeapi.StatusResponse
				if st, err = rt.Status(ctx, false); err == nil {
					a.setFeatures(st) // admission of pods needs them
					return nil
				}
			}
		}
		if !said && ctx.Err() == nil {
			a.log.Info("waiting for the container runtime", "endpoint", a.cfg.RuntimeEndpoint, "err", err)
			said = true
		}
		if !pause(ctx, delay) {
			return ctx.Err()
		}
		delay = longer(delay)
	}
}

// longer returns the delay after delay between two looks at something that sends no event: a quarter longer, at most
// notReadyMost.
func longer(delay time.Duration) time.Duration { return min(delay*5/4, notReadyMost) }

// relist hands each worker a complete list of what the runtime has of its pod, which makes up for missed events.
func (a *Agent) relist(ctx context.Context) {
	defer a.count.Relisted(time.Now())
	pods, err := cri.ListPods(ctx, a.runtime)
	if err != nil {
		a.log.Warn("the runtime cannot be listed; missed events are made up for at the next list", "err", err)
		return
	}
	a.mu.Lock()
	workers := make([]*podworker.Worker, 0, len(a.workers))
	for _, w := range a.workers {
		workers = append(workers, w)
	}
	a.mu.Unlock()
	for _, w := range workers {
		p := pods[w.UID()]
		if p == nil {
			p = &cri.Pod{}
		}
		w.Relisted(p)
	}
}

// execProbe runs a probe's command in a container.
func (a *Agent) execProbe(ctx context.Context, id string, args []string, timeout time.Duration) (int32, []byte, error) {
	return cri.Exec(ctx, a.runtime, cri.Command{ContainerID: id, Args: args, Timeout: timeout})
}

func (a *Agent) runtimeEvents() *cri.Events {
	return &cri.Events{Runtime: a.runtime, Handle: a.runtimeEvent, Relist: a.relist, RelistInterval: relistInterval, Ended: func(err error) {
		a.log.Warn("the runtime's stream of events has ended; it is asked for again, and the runtime is listed", "err", err)
		a.nudge()
	}}
}

// runtimeEvent hands an event to the worker of its pod.
func (a *Agent) runtimeEvent(e *runtimeapi.ContainerEventResponse) {
	fault.Point(cri.Unit)
	var uid types.UID
	if s := e.PodSandboxStatus; s != nil {
		uid = types.UID(s.GetMetadata().GetUid())
	} else if len(e.ContainersStatuses) > 0 {
		uid = types.UID(e.ContainersStatuses[0].Labels[kubelettypes.KubernetesPodUIDLabel])
	}
	if w := a.worker(uid); w != nil {
		w.RuntimeEvent(e)
	}
}

// features returns what a runtime handler can; nil when the runtime does not know it.
func (a *Agent) features(handler string) *runtimeapi.RuntimeHandlerFeatures {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.handlers[handler]
}

// handlerNames returns the handlers that the runtime has, besides the default one; empty when it does not say.
func (a *Agent) handlerNames() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(a.handlers)), func(name string) bool { return name == "" })
}
