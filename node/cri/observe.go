package cri

import (
	"context"
	"time"

	criapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Called is told of each call to the runtime that has ended, by upstream's name of the operation.
type Called func(operation string, began time.Time, err error)

// Observe returns services that tell called of their calls. The stream of events, which lasts, is left out.
func Observe(rt criapi.RuntimeService, im criapi.ImageManagerService, called Called) (criapi.RuntimeService, criapi.ImageManagerService) {
	return &observedRuntime{rt, called}, &observedImages{im, called}
}

// observe makes one call with a result.
func observe[T any](called Called, operation string, call func() (T, error)) (T, error) {
	began := time.Now()
	out, err := call()
	called(operation, began, err)
	return out, err
}

// observeError makes one call without a result.
func observeError(called Called, operation string, call func() error) error {
	began := time.Now()
	err := call()
	called(operation, began, err)
	return err
}

type observedRuntime struct {
	criapi.RuntimeService
	called Called
}

type observedImages struct {
	criapi.ImageManagerService
	called Called
}

// ExecSync implements criapi.ContainerManager.
func (o *observedRuntime) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	began := time.Now()
	stdout, stderr, err = o.RuntimeService.ExecSync(ctx, id, cmd, timeout)
	o.called("exec_sync", began, err)
	return stdout, stderr, err
}

// Version implements criapi.RuntimeService.
func (o *observedRuntime) Version(ctx context.Context, apiVersion string) (*runtimeapi.VersionResponse, error) {
	return observe(o.called, "version", func() (*runtimeapi.VersionResponse, error) { return o.RuntimeService.Version(ctx, apiVersion) })
}

// CreateContainer implements criapi.RuntimeService.
func (o *observedRuntime) CreateContainer(ctx context.Context, sandbox string, c *runtimeapi.ContainerConfig, s *runtimeapi.PodSandboxConfig) (string, error) {
	return observe(o.called, "create_container", func() (string, error) { return o.RuntimeService.CreateContainer(ctx, sandbox, c, s) })
}

// StartContainer implements criapi.RuntimeService.
func (o *observedRuntime) StartContainer(ctx context.Context, id string) error {
	return observeError(o.called, "start_container", func() error { return o.RuntimeService.StartContainer(ctx, id) })
}

// StopContainer implements criapi.RuntimeService.
func (o *observedRuntime) StopContainer(ctx context.Context, id string, timeout int64) error {
	return observeError(o.called, "stop_container", func() error { return o.RuntimeService.StopContainer(ctx, id, timeout) })
}

// RemoveContainer implements criapi.RuntimeService.
func (o *observedRuntime) RemoveContainer(ctx context.Context, id string) error {
	return observeError(o.called, "remove_container", func() error { return o.RuntimeService.RemoveContainer(ctx, id) })
}

// ListContainers implements criapi.RuntimeService.
func (o *observedRuntime) ListContainers(ctx context.Context, f *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return observe(o.called, "list_containers", func() ([]*runtimeapi.Container, error) { return o.RuntimeService.ListContainers(ctx, f) })
}

// ContainerStatus implements criapi.RuntimeService.
func (o *observedRuntime) ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error) {
	return observe(o.called, "container_status", func() (*runtimeapi.ContainerStatusResponse, error) {
		return o.RuntimeService.ContainerStatus(ctx, id, verbose)
	})
}

// UpdateContainerResources implements criapi.RuntimeService.
func (o *observedRuntime) UpdateContainerResources(ctx context.Context, id string, res *runtimeapi.ContainerResources) error {
	return observeError(o.called, "update_container", func() error { return o.RuntimeService.UpdateContainerResources(ctx, id, res) })
}

// Exec implements criapi.RuntimeService.
func (o *observedRuntime) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return observe(o.called, "exec", func() (*runtimeapi.ExecResponse, error) { return o.RuntimeService.Exec(ctx, req) })
}

// Attach implements criapi.RuntimeService.
func (o *observedRuntime) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return observe(o.called, "attach", func() (*runtimeapi.AttachResponse, error) { return o.RuntimeService.Attach(ctx, req) })
}

// ReopenContainerLog implements criapi.RuntimeService.
func (o *observedRuntime) ReopenContainerLog(ctx context.Context, id string) error {
	return observeError(o.called, "reopen_container_log", func() error { return o.RuntimeService.ReopenContainerLog(ctx, id) })
}

// RunPodSandbox implements criapi.RuntimeService.
func (o *observedRuntime) RunPodSandbox(ctx context.Context, c *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	return observe(o.called, "run_podsandbox", func() (string, error) { return o.RuntimeService.RunPodSandbox(ctx, c, handler) })
}

// StopPodSandbox implements criapi.RuntimeService.
func (o *observedRuntime) StopPodSandbox(ctx context.Context, id string) error {
	return observeError(o.called, "stop_podsandbox", func() error { return o.RuntimeService.StopPodSandbox(ctx, id) })
}

// RemovePodSandbox implements criapi.RuntimeService.
func (o *observedRuntime) RemovePodSandbox(ctx context.Context, id string) error {
	return observeError(o.called, "remove_podsandbox", func() error { return o.RuntimeService.RemovePodSandbox(ctx, id) })
}

// PodSandboxStatus implements criapi.RuntimeService.
func (o *observedRuntime) PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	return observe(o.called, "podsandbox_status", func() (*runtimeapi.PodSandboxStatusResponse, error) {
		return o.RuntimeService.PodSandboxStatus(ctx, id, verbose)
	})
}

// ListPodSandbox implements criapi.RuntimeService.
func (o *observedRuntime) ListPodSandbox(ctx context.Context, f *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return observe(o.called, "list_podsandbox", func() ([]*runtimeapi.PodSandbox, error) { return o.RuntimeService.ListPodSandbox(ctx, f) })
}

// PortForward implements criapi.RuntimeService.
func (o *observedRuntime) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return observe(o.called, "port_forward", func() (*runtimeapi.PortForwardResponse, error) { return o.RuntimeService.PortForward(ctx, req) })
}

// ListContainerStats implements criapi.RuntimeService.
func (o *observedRuntime) ListContainerStats(ctx context.Context, f *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	return observe(o.called, "list_container_stats", func() ([]*runtimeapi.ContainerStats, error) { return o.RuntimeService.ListContainerStats(ctx, f) })
}

// ListPodSandboxStats implements criapi.RuntimeService.
func (o *observedRuntime) ListPodSandboxStats(ctx context.Context, f *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	return observe(o.called, "list_podsandbox_stats", func() ([]*runtimeapi.PodSandboxStats, error) { return o.RuntimeService.ListPodSandboxStats(ctx, f) })
}

// Status implements criapi.RuntimeService.
func (o *observedRuntime) Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error) {
	return observe(o.called, "status", func() (*runtimeapi.StatusResponse, error) { return o.RuntimeService.Status(ctx, verbose) })
}

// ListImages implements criapi.ImageManagerService.
func (o *observedImages) ListImages(ctx context.Context, f *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return observe(o.called, "list_images", func() ([]*runtimeapi.Image, error) { return o.ImageManagerService.ListImages(ctx, f) })
}

// ImageStatus implements criapi.ImageManagerService.
func (o *observedImages) ImageStatus(ctx context.Context, i *runtimeapi.ImageSpec, verbose bool) (*runtimeapi.ImageStatusResponse, error) {
	return observe(o.called, "image_status", func() (*runtimeapi.ImageStatusResponse, error) {
		return o.ImageManagerService.ImageStatus(ctx, i, verbose)
	})
}

// PullImage implements criapi.ImageManagerService.
func (o *observedImages) PullImage(ctx context.Context, i *runtimeapi.ImageSpec, a *runtimeapi.AuthConfig, s *runtimeapi.PodSandboxConfig) (string, error) {
	return observe(o.called, "pull_image", func() (string, error) { return o.ImageManagerService.PullImage(ctx, i, a, s) })
}

// RemoveImage implements criapi.ImageManagerService.
func (o *observedImages) RemoveImage(ctx context.Context, i *runtimeapi.ImageSpec) error {
	return observeError(o.called, "remove_image", func() error { return o.ImageManagerService.RemoveImage(ctx, i) })
}

// ImageFsInfo implements criapi.ImageManagerService.
func (o *observedImages) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return observe(o.called, "image_fs_info", func() (*runtimeapi.ImageFsInfoResponse, error) { return o.ImageManagerService.ImageFsInfo(ctx) })
}
