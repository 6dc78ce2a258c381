package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	criapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"
	kubelettypes "k8s.io/kubelet/pkg/types"
	utilexec "k8s.io/utils/exec"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/probe"
)

// unitEvents is the handling of the runtime's events.
const unitEvents = "node/runtime events"

// criTimeout bounds every call to the runtime but pulls and stops.
const criTimeout = 2 * time.Minute

// notFound reports whether the runtime says that it knows no such thing.
func notFound(err error) bool { return grpcstatus.Code(err) == codes.NotFound }

// message is the text of an error without what gRPC puts around it.
func message(err error) string {
	var se *startError
	if errors.As(err, &se) {
		err = se.err
	}
	if s, ok := grpcstatus.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// connect waits until the runtime answers.
func (a *Agent) connect(ctx context.Context) error {
	dial := a.cfg.Connect
	if dial == nil {
		dial = a.dial
	}
	said, delay := false, notReadyPoll
	for {
		rt, im, err := dial(ctx)
		if err == nil {
			var v *runtimeapi.VersionResponse
			if v, err = rt.Version(ctx, "v1"); err == nil {
				a.runtime, a.images, a.runtimeName, a.runtimeVer = rt, im, v.RuntimeName, v.RuntimeVersion
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

func (a *Agent) dial(ctx context.Context) (criapi.RuntimeService, criapi.ImageManagerService, error) {
	rt, err := criclient.NewRemoteRuntimeServiceBuilder().WithEndpoint(a.cfg.RuntimeEndpoint).
		WithConnectionTimeout(criTimeout).WithTracerProvider(nil).Build(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("node: connect to runtime: %w", err)
	}
	im, err := criclient.NewRemoteImageServiceBuilder().WithEndpoint(a.cfg.RuntimeEndpoint).
		WithConnectionTimeout(criTimeout).WithTracerProvider(nil).Build(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("node: connect to image service: %w", err)
	}
	return rt, im, nil
}

// followRuntime passes the runtime's events on to the workers. While events do
// not arrive, and rarely otherwise, the runtime is listed.
func (a *Agent) followRuntime(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ch := make(chan *runtimeapi.ContainerEventResponse, 256)
	broken, established := make(chan error, 1), make(chan struct{}, 1)
	subscribe := func() {
		broken <- fault.Contain(unitEvents, func() error {
			return a.runtime.GetContainerEvents(ctx, ch, func(runtimeapi.RuntimeService_GetContainerEventsClient) {
				select {
				case established <- struct{}{}:
				default:
				}
			})
		})
	}
	go fault.Contained(unitEvents, subscribe)()
	first := true
	tick := time.NewTicker(relistInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			<-broken
			return
		case e := <-ch:
			if err := fault.Do(unitEvents, func() { a.runtimeEvent(e) }); err != nil {
				a.relist(ctx)
			}
		case <-established:
			if !first {
				a.relist(ctx) // what happened while nobody listened
			}
			first = false
		case err := <-broken:
			if ctx.Err() != nil {
				return
			}
			a.log.Warn("runtime events ended", "err", err)
			a.nudge()
			if !pause(ctx, time.Second) {
				return
			}
			a.relist(ctx)
			go fault.Contained(unitEvents, subscribe)()
		case <-tick.C:
			a.relist(ctx)
		}
	}
}

// runtimeEvent hands the state an event carries to the pod's worker.
func (a *Agent) runtimeEvent(e *runtimeapi.ContainerEventResponse) {
	fault.Point("node/runtime events")
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

// found is what the runtime has of one pod.
type found struct {
	name, namespace string
	sandboxes       []*runtimeapi.PodSandboxStatus
	containers      []*runtimeapi.ContainerStatus
	boxOf           map[string]string // sandbox by container ID
}

// list asks the runtime for everything it has.
func (a *Agent) list(ctx context.Context) (map[types.UID]*found, error) {
	pods := map[types.UID]*found{}
	at := func(labels map[string]string) *found {
		uid := types.UID(labels[kubelettypes.KubernetesPodUIDLabel])
		if uid == "" {
			return nil
		}
		if pods[uid] == nil {
			pods[uid] = &found{name: labels[kubelettypes.KubernetesPodNameLabel],
				namespace: labels[kubelettypes.KubernetesPodNamespaceLabel], boxOf: map[string]string{}}
		}
		return pods[uid]
	}
	boxes, err := a.runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, b := range boxes {
		p := at(b.Labels)
		if p == nil {
			continue
		}
		r, err := a.runtime.PodSandboxStatus(ctx, b.Id, false)
		if notFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		p.sandboxes = append(p.sandboxes, r.Status)
	}
	cs, err := a.runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, c := range cs {
		p := at(c.Labels)
		if p == nil {
			continue
		}
		r, err := a.runtime.ContainerStatus(ctx, c.Id, false)
		if notFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		p.containers, p.boxOf[c.Id] = append(p.containers, r.Status), c.PodSandboxId
	}
	return pods, nil
}

// relist corrects what events have missed.
func (a *Agent) relist(ctx context.Context) {
	pods, err := a.list(ctx)
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
			p = &found{}
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
func (a *Agent) execProbe(ctx context.Context, id string, cmd []string, timeout time.Duration) (int32, []byte, error) {
	out, stderr, err := a.runtime.ExecSync(ctx, id, cmd, timeout)
	out = append(out, stderr...)
	var exit utilexec.ExitError
	switch {
	case err == nil:
		return 0, out, nil
	case errors.As(err, &exit):
		return int32(exit.ExitStatus()), out, nil
	case errors.Is(err, criclient.ErrCommandTimedOut), grpcstatus.Code(err) == codes.DeadlineExceeded:
		return 0, out, fmt.Errorf("command %q: %w", cmd, probe.ErrTimeout)
	}
	return 0, out, err
}
