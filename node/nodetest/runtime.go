package nodetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Run is how one run of a container goes.
type Run struct {
	Lasts time.Duration // 0: until it is stopped
	Exit  int32
	// Stubborn ignores SIGTERM.
	Stubborn bool
}

// Runtime is a container runtime in memory. The embedded interfaces are nil:
// a call that the agent is not expected to make panics.
type Runtime struct {
	criapi.RuntimeService
	criapi.ImageManagerService

	mu         sync.Mutex
	serial     int
	sandboxes  map[string]*runtimeapi.PodSandboxStatus
	containers map[string]*container
	runs       map[string][]Run // by container name, the last one repeats
	images     map[string]bool
	pullErrs   map[string][]error
	listeners  map[chan *runtimeapi.ContainerEventResponse]bool
	log        []string
	faults     map[string]func() error
	hangs      bool
	memory     map[string]uint64 // by container name
}

type container struct {
	status  *runtimeapi.ContainerStatus
	sandbox string
	run     Run
	done    chan struct{}
	timer   *time.Timer
}

// New returns a runtime that has every image and whose containers run on.
func New() *Runtime {
	return &Runtime{
		sandboxes: map[string]*runtimeapi.PodSandboxStatus{}, containers: map[string]*container{}, runs: map[string][]Run{},
		images: map[string]bool{}, pullErrs: map[string][]error{}, listeners: map[chan *runtimeapi.ContainerEventResponse]bool{},
		faults: map[string]func() error{}, memory: map[string]uint64{},
	}
}

// Script says how the runs of the containers with this name go, one after the
// other; the last repeats.
func (r *Runtime) Script(container string, runs ...Run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs[container] = runs
}

// Missing has an image be absent until it is pulled; each error fails one pull.
func (r *Runtime) Missing(image string, errs ...error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images[image], r.pullErrs[image] = true, errs
}

// Fail has fault asked at each call of a CRI method, such as "StopContainer"; the call fails with what it returns. It may
// not call the Runtime.
func (r *Runtime) Fail(method string, fault func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults[method] = fault
}

// fault is the error that a call of a method is to have; the lock is held.
func (r *Runtime) fault(method string) error {
	if f := r.faults[method]; f != nil {
		return f()
	}
	return nil
}

// Log lists what the runtime was asked to do, in order: "start c0", "stop c0".
func (r *Runtime) Log() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.log...)
}

func (r *Runtime) note(format string, args ...any) {
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

func (r *Runtime) id(prefix string) string {
	r.serial++
	return fmt.Sprintf("%s%d", prefix, r.serial)
}

func missing(id string) error { return status.Error(codes.NotFound, id+" not found") }

// Version implements criapi.RuntimeService.
func (r *Runtime) Version(context.Context, string) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "memory", RuntimeVersion: "1"}, nil
}

// Hang makes the runtime not answer when it is asked for its status.
func (r *Runtime) Hang(hang bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hangs = hang
}

// Status implements criapi.RuntimeService.
func (r *Runtime) Status(ctx context.Context, _ bool) (*runtimeapi.StatusResponse, error) {
	r.mu.Lock()
	hangs := r.hangs
	r.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true}}}}, nil
}

// RunPodSandbox implements criapi.RuntimeService.
func (r *Runtime) RunPodSandbox(_ context.Context, cfg *runtimeapi.PodSandboxConfig, _ string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fault("RunPodSandbox"); err != nil {
		return "", err
	}
	id := r.id("s")
	r.sandboxes[id] = &runtimeapi.PodSandboxStatus{
		Id: id, Metadata: cfg.Metadata, Labels: cfg.Labels, CreatedAt: time.Now().UnixNano(),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: fmt.Sprintf("10.0.0.%d", r.serial)},
	}
	r.note("sandbox %s", cfg.Metadata.Name)
	return id, nil
}

// StopPodSandbox implements criapi.RuntimeService.
func (r *Runtime) StopPodSandbox(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fault("StopPodSandbox"); err != nil {
		return err
	}
	s := r.sandboxes[id]
	if s == nil {
		return missing(id)
	}
	s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	for _, c := range r.containers {
		if c.sandbox == id {
			r.exit(c, 137)
		}
	}
	r.note("stop-sandbox %s", s.Metadata.Name)
	return nil
}

// KillSandbox has the sandbox of a pod die with all that runs in it.
func (r *Runtime) KillSandbox(pod string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, s := range r.sandboxes {
		if s.Metadata.Name == pod && s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
			for _, c := range r.containers {
				if c.sandbox == id {
					r.exit(c, 137)
				}
			}
			r.tell(id, id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
		}
	}
}

// RemovePodSandbox implements criapi.RuntimeService.
func (r *Runtime) RemovePodSandbox(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fault("RemovePodSandbox"); err != nil {
		return err
	}
	for cid, c := range r.containers {
		if c.sandbox == id {
			r.exit(c, 137)
			delete(r.containers, cid)
		}
	}
	delete(r.sandboxes, id)
	return nil
}

// PodSandboxStatus implements criapi.RuntimeService.
func (r *Runtime) PodSandboxStatus(_ context.Context, id string, _ bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return nil, missing(id)
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: copyOf(s)}, nil
}

// ListPodSandbox implements criapi.RuntimeService.
func (r *Runtime) ListPodSandbox(_ context.Context, f *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*runtimeapi.PodSandbox
	for id, s := range r.sandboxes {
		ok := true
		for k, v := range f.GetLabelSelector() {
			ok = ok && s.Labels[k] == v
		}
		if ok {
			out = append(out, &runtimeapi.PodSandbox{Id: id, Metadata: s.Metadata, State: s.State, Labels: s.Labels, CreatedAt: s.CreatedAt})
		}
	}
	return out, nil
}

// CreateContainer implements criapi.RuntimeService.
func (r *Runtime) CreateContainer(_ context.Context, sandbox string, cfg *runtimeapi.ContainerConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fault("CreateContainer"); err != nil {
		return "", err
	}
	if r.sandboxes[sandbox] == nil {
		return "", missing(sandbox)
	}
	id := r.id("c")
	r.containers[id] = &container{sandbox: sandbox, done: make(chan struct{}), status: &runtimeapi.ContainerStatus{
		Id: id, Metadata: cfg.Metadata, Labels: cfg.Labels, Annotations: cfg.Annotations, Image: cfg.Image, ImageRef: cfg.Image.Image,
		CreatedAt: time.Now().UnixNano(), State: runtimeapi.ContainerState_CONTAINER_CREATED, Mounts: cfg.Mounts,
	}}
	return id, nil
}

// StartContainer implements criapi.RuntimeService.
func (r *Runtime) StartContainer(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fault("StartContainer"); err != nil {
		return err
	}
	c := r.containers[id]
	if c == nil {
		return missing(id)
	}
	name := c.status.Metadata.Name
	if runs := r.runs[name]; len(runs) > 0 {
		c.run = runs[0]
		if len(runs) > 1 {
			r.runs[name] = runs[1:]
		}
	}
	c.status.State, c.status.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	r.note("start %s", name)
	r.tell(id, c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	if c.run.Lasts > 0 {
		c.timer = time.AfterFunc(c.run.Lasts, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.exit(c, c.run.Exit)
		})
	}
	return nil
}

// exit ends a container that runs; the lock is held.
func (r *Runtime) exit(c *container, code int32) {
	if c.status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.status.State, c.status.ExitCode, c.status.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, code, time.Now().UnixNano()
	c.status.Reason = "Completed"
	if code != 0 {
		c.status.Reason = "Error"
	}
	close(c.done)
	r.note("exit %s %d", c.status.Metadata.Name, code)
	r.tell(c.status.Id, c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// StopContainer implements criapi.RuntimeService.
func (r *Runtime) StopContainer(ctx context.Context, id string, timeout int64) error {
	r.mu.Lock()
	if err := r.fault("StopContainer"); err != nil {
		r.mu.Unlock()
		return err
	}
	c := r.containers[id]
	if c == nil {
		r.mu.Unlock()
		return missing(id)
	}
	r.note("stop %s %d", c.status.Metadata.Name, timeout)
	if !c.run.Stubborn {
		r.exit(c, 143)
	}
	r.mu.Unlock()
	select {
	case <-c.done:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(timeout) * time.Second):
		r.mu.Lock()
		r.exit(c, 137)
		r.mu.Unlock()
	}
	return nil
}

// RemoveContainer implements criapi.RuntimeService.
func (r *Runtime) RemoveContainer(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fault("RemoveContainer"); err != nil {
		return err
	}
	if c := r.containers[id]; c != nil {
		r.exit(c, 137)
	}
	delete(r.containers, id)
	return nil
}

// ListContainers implements criapi.RuntimeService.
func (r *Runtime) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*runtimeapi.Container
	for id, c := range r.containers {
		out = append(out, &runtimeapi.Container{Id: id, PodSandboxId: c.sandbox, Metadata: c.status.Metadata, Labels: c.status.Labels, State: c.status.State})
	}
	return out, nil
}

// ContainerStatus implements criapi.RuntimeService.
func (r *Runtime) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, missing(id)
	}
	return &runtimeapi.ContainerStatusResponse{Status: copyOf(c.status)}, nil
}

// UpdateContainerResources implements criapi.RuntimeService.
func (r *Runtime) UpdateContainerResources(_ context.Context, id string, _ *runtimeapi.ContainerResources) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if err := r.fault("UpdateContainerResources"); err != nil {
		return err
	}
	if c == nil {
		return missing(id)
	}
	r.note("update %s", c.status.Metadata.Name)
	return nil
}

// Uses says how many bytes of memory a container uses while it runs; of other containers nothing is known.
func (r *Runtime) Uses(container string, memory uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.memory[container] = memory
}

// ListContainerStats implements criapi.RuntimeService. It knows the filter by labels.
func (r *Runtime) ListContainerStats(_ context.Context, f *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*runtimeapi.ContainerStats
	for id, c := range r.containers {
		bytes, known := r.memory[c.status.Metadata.Name]
		if !known || c.status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		for k, v := range f.GetLabelSelector() {
			known = known && c.status.Labels[k] == v
		}
		if known {
			out = append(out, &runtimeapi.ContainerStats{Attributes: &runtimeapi.ContainerAttributes{Id: id, Metadata: c.status.Metadata, Labels: c.status.Labels},
				Memory: &runtimeapi.MemoryUsage{WorkingSetBytes: &runtimeapi.UInt64Value{Value: bytes}}})
		}
	}
	return out, nil
}

// ListPodSandboxStats implements criapi.RuntimeService as a runtime that knows statistics of containers only.
func (r *Runtime) ListPodSandboxStats(context.Context, *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	return nil, status.Error(codes.Unimplemented, "not known")
}
