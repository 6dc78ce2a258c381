package nodetest

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func copyOf[M proto.Message](m M) M { return proto.Clone(m).(M) }

// tell sends an event to every listener; the lock is held. A listener that
// falls behind loses events, as with a real runtime.
func (r *Runtime) tell(id, sandbox string, kind runtimeapi.ContainerEventType) {
	e := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano()}
	if s := r.sandboxes[sandbox]; s != nil {
		e.PodSandboxStatus = copyOf(s)
	}
	for _, c := range r.containers {
		if c.sandbox == sandbox {
			e.ContainersStatuses = append(e.ContainersStatuses, copyOf(c.status))
		}
	}
	for ch := range r.listeners {
		select {
		case ch <- e:
		default:
		}
	}
}

// GetContainerEvents implements criapi.RuntimeService.
func (r *Runtime) GetContainerEvents(ctx context.Context, to chan *runtimeapi.ContainerEventResponse,
	established func(runtimeapi.RuntimeService_GetContainerEventsClient)) error {
	ch := make(chan *runtimeapi.ContainerEventResponse, 1000)
	r.mu.Lock()
	r.listeners[ch] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.listeners, ch)
	}()
	established(nil)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-ch:
			select {
			case to <- e:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// ListImages implements criapi.ImageManagerService.
func (r *Runtime) ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return nil, nil
}

// ImageStatus implements criapi.ImageManagerService.
func (r *Runtime) ImageStatus(_ context.Context, spec *runtimeapi.ImageSpec, _ bool) (*runtimeapi.ImageStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.images[spec.Image] {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: spec.Image, Size: 1}}, nil
}

// PullImage implements criapi.ImageManagerService.
func (r *Runtime) PullImage(_ context.Context, spec *runtimeapi.ImageSpec, _ *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note("pull %s", spec.Image)
	if errs := r.pullErrs[spec.Image]; len(errs) > 0 {
		r.pullErrs[spec.Image] = errs[1:]
		return "", errs[0]
	}
	delete(r.images, spec.Image)
	return spec.Image, nil
}

// Close implements both services.
func (r *Runtime) Close(context.Context) error { return nil }

// ImageFsInfo implements criapi.ImageManagerService.
func (r *Runtime) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{}, nil
}

// ReopenContainerLog implements criapi.RuntimeService.
func (r *Runtime) ReopenContainerLog(context.Context, string) error { return nil }
