package node

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	criapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/cri"
	"github.com/balsahq/balsa/node/images"
)

// connect waits until the runtime answers.
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
			var v *runtimeapi.VersionResponse
			if v, err = rt.Version(ctx, "v1"); err == nil {
				a.runtime, a.images, a.runtimeName, a.runtimeVer = rt, im, v.RuntimeName, v.RuntimeVersion
				a.puller = &images.Puller{Service: im, Client: a.cfg.Client, Events: a.recorder, Changed: a.imagesChanged}
				var st *runtimeapi.StatusResponse
				if st, err = rt.Status(ctx, false); err == nil {
					a.setFeatures(st) // admission asks for them
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

// longer is the next delay of what is waited for and tells nobody when it comes.
func longer(delay time.Duration) time.Duration { return min(delay*5/4, notReadyMost) }

// runtimeEvent hands the state an event carries to the pod's worker.
func (a *Agent) runtimeEvent(e *runtimeapi.ContainerEventResponse) {
	fault.Point(cri.Unit)
	var uid types.UID
	sandboxID := ""
	if s := e.PodSandboxStatus; s != nil {
		uid, sandboxID = types.UID(s.GetMetadata().GetUid()), s.Id
	} else if len(e.ContainersStatuses) > 0 {
		uid = types.UID(e.ContainersStatuses[0].Labels[kubelettypes.KubernetesPodUIDLabel])
	}
	w := a.worker(uid)
	if w == nil {
		return
	}
	dead := e.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT && e.ContainerId == sandboxID
	w.mailbox.post(func() {
		if b := w.o.Sandbox; dead && b != nil && b.ID == sandboxID {
			b.Ready = false
		}
		for _, s := range e.ContainersStatuses {
			// What was only created belongs to an operation that will tell itself.
			if sandboxID != "" && s.State != runtimeapi.ContainerState_CONTAINER_CREATED {
				w.observe(s, sandboxID)
			}
		}
	})
}

// relist corrects what events have missed.
func (a *Agent) relist(ctx context.Context) {
	pods, err := cri.ListPods(ctx, a.runtime)
	if err != nil {
		a.log.Warn("runtime not listed", "err", err)
		return
	}
	a.mu.Lock()
	workers := make([]*worker, 0, len(a.workers))
	for _, w := range a.workers {
		workers = append(workers, w)
	}
	a.mu.Unlock()
	for _, w := range workers {
		p := pods[w.uid]
		if p == nil {
			p = &cri.Pod{}
		}
		w.mailbox.post(func() { w.relisted(p) })
	}
}

// runtimeHandler is the handler of the pod's RuntimeClass, "" by default.
func (a *Agent) runtimeHandler(ctx context.Context, pod *v1.Pod) (string, error) {
	name := pod.Spec.RuntimeClassName
	if name == nil || *name == "" {
		return "", nil
	}
	rc, err := a.cfg.Client.NodeV1().RuntimeClasses().Get(ctx, *name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("failed to get RuntimeClass %q: %w", *name, err)
	}
	if err != nil {
		return "", err
	}
	return rc.Handler, nil
}

// rro reports whether the runtime handler can mount read-only recursively.
func (a *Agent) rro(handler string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.handlers[handler]
	return f != nil && f.RecursiveReadOnlyMounts
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
