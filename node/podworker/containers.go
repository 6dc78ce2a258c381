package podworker

import (
	"context"
	"errors"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/node/containerlogs"
	"github.com/balsahq/balsa/node/cri"
	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/volume"
)

// Reasons for which a container was not started, as its status has them. All but errNetwork are upstream's.
const (
	errConfig = "CreateContainerConfigError"
	errCreate = "CreateContainerError"
	errRun    = "RunContainerError"
	errHook   = "PostStartHookError"
	// errNetwork means that the network's rules for the pod's addresses are not in place.
	errNetwork = "NetworkNotReady"
)

var errStillRuns = errors.New("the runtime reported the container as stopped, and it still runs")

// startError is a failed start with the reason for the container's status.
type startError struct {
	reason string
	err    error
}

func (e *startError) Error() string { return message(e.err) }
func (e *startError) Unwrap() error { return e.err }

// message is cri.Message of the error inside a startError.
func message(err error) string {
	var se *startError
	if errors.As(err, &se) {
		err = se.err
	}
	return cri.Message(err)
}

// startInput is what the worker's goroutine gives to the start of a container.
type startInput struct {
	pod       *v1.Pod
	container *v1.Container
	kind      podloop.ContainerKind
	attempt   int
	image     string
	sandbox   podloop.Sandbox
	handler   string
	mounts    volume.Mounts // with the runtime's references of images
	podIPs    []string
	stale     string // ID of a container that was created and never started; it is removed first
	target    string // of an ephemeral container
	given     podloop.Given
	grow      bool // the pod's cgroup may be smaller than what is allocated
}

func (w *Worker) startContainer(a podloop.Action) operation {
	c, kind := podloop.FindContainer(w.pod, a.Container)
	in := startInput{
		pod: w.pod, container: c, kind: kind, attempt: a.Attempt, image: w.observed.Images[a.Container].Ref,
		sandbox: *w.observed.Sandbox, handler: w.handler, mounts: withImageReferences(w.mounts, w.observed.Images[a.Container]), podIPs: podloop.PodIPs(w.pod, w.observed, w.host.HostIPs),
		given: podloop.GivenOf(w.pod, c), grow: w.observed.Actual.Group,
	}
	last := w.observed.Latest(a.Container)
	if last != nil && last.State == podloop.StateCreated {
		in.stale = last.ID
	}
	if kind == podloop.KindEphemeral {
		in.target = w.targetContainerID(a.Container)
	}
	if last != nil && last.State == podloop.StateExited && !last.Replaced {
		before := w.observed.Backoff[a.Container]
		if last.Outdated(c) {
			before = podloop.Backoff{}
		}
		w.observed.Backoff[a.Container] = before.Next(w.observed.Now, last.Finished)
	}
	return func(ctx context.Context) func() { return w.createAndStart(ctx, in) }
}

func (w *Worker) targetContainerID(name string) string {
	for _, e := range w.pod.Spec.EphemeralContainers {
		if e.Name == name {
			if t := w.observed.Latest(e.TargetContainerName); t != nil {
				return t.ID
			}
		}
	}
	return ""
}

// createAndStart creates and starts a container and runs its postStart hook.
func (w *Worker) createAndStart(ctx context.Context, in startInput) func() {
	name := in.container.Name
	w.host.Counters.ContainerStarts(in.kind.Label())
	id, cleanup, err := w.createContainer(ctx, in)
	if err == nil {
		w.containerEventOf(in.pod, name, in.kind, v1.EventTypeNormal, "Created", "Container created")
		// A start is not cancelled: its result would not be known.
		if err = w.host.Runtime.StartContainer(context.WithoutCancel(ctx), id); err != nil {
			err = &startError{errRun, err}
		}
	}
	if err != nil {
		w.containerEventOf(in.pod, name, in.kind, v1.EventTypeWarning, "Failed", "Error: "+message(err))
		var status *runtimeapi.ContainerStatus
		if id != "" {
			status = w.containerStatus(context.WithoutCancel(ctx), id)
		}
		return w.startFailed(in, status, cleanup, err)
	}
	w.containerEventOf(in.pod, name, in.kind, v1.EventTypeNormal, "Started", "Container started")
	if err := containerlogs.Link(w.host.Config.LogDir, containerlogs.Run{Pod: in.pod, Container: name, ID: id, Attempt: in.attempt}); err != nil {
		w.host.Logger.Warn("the link to a container's log cannot be made; log collectors do not find it", "pod", podloop.PodName(in.pod), "container", name, "err", err)
	}
	status := w.containerStatus(context.WithoutCancel(ctx), id)
	if status != nil {
		w.mailbox.post(func() { w.observe(status, in.sandbox.ID) })
	}
	if l := in.container.Lifecycle; l != nil && l.PostStart != nil {
		if err := w.host.runHook(ctx, hookTarget{in.pod, in.container, id, in.podIPs}, l.PostStart); err != nil && ctx.Err() == nil {
			w.containerEventOf(in.pod, name, in.kind, v1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
			w.stopContainer(ctx, killInput{pod: in.pod, container: in.container, kind: in.kind, id: id, grace: podloop.GracePeriod(in.pod, nil),
				message: "FailedPostStartHook", podIPs: in.podIPs})
			status = w.containerStatus(ctx, id)
		}
	}
	return func() {
		delete(w.observed.Images, name)
		delete(w.observed.StartRetry, name)
		w.cleanups[id] = cleanup
		if status != nil {
			w.observe(status, in.sandbox.ID)
		}
		w.noteGiven(name, id, in.given)
		w.startProbes(in.container, id)
	}
}

// noteGiven notes what a container has started with: a resize may have been allocated meanwhile.
func (w *Worker) noteGiven(name, id string, given podloop.Given) {
	if in := w.observed.ByID(id); in == nil || in.State != podloop.StateRunning || w.observed.Actual.AsAllocated() {
		return
	}
	given.ID = id
	w.observed.Actual.Started(w.pod, name, given)
	w.saveRecord()
}

// startFailed records the failure for the retry. A container that was created and failed to start counts as a run.
func (w *Worker) startFailed(in startInput, status *runtimeapi.ContainerStatus, cleanup func(), err error) func() {
	reason := errCreate
	var se *startError
	if errors.As(err, &se) {
		reason = se.reason
	}
	w.host.Counters.ContainerFailed(in.kind.Label(), reason, criconfig.HasUserNamespace(in.pod))
	return func() {
		name := in.container.Name
		if cleanup != nil {
			cleanup()
		}
		w.observed.Actual.Ended(name, "")
		w.observed.StartRetry[name] = w.observed.StartRetry[name].Again(w.observed.Now, podloop.Failure{Reason: reason, Message: message(err)}, time.Second, podloop.MaxRetry)
		if status != nil {
			w.observe(status, in.sandbox.ID)
			delete(w.observed.Images, name)
		}
		if status.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			delete(w.observed.StartRetry, name) // the crash back-off decides when it starts again
		}
	}
}

// networkReady waits until the network's rules for the pod's addresses are in place. No packet may leave the pod before.
func (w *Worker) networkReady(ctx context.Context, in startInput) error {
	if w.host.NetworkReady == nil || in.pod.Spec.HostNetwork {
		return nil
	}
	var addresses []netip.Addr
	for _, ip := range in.sandbox.IPs {
		if a, err := netip.ParseAddr(ip); err == nil {
			addresses = append(addresses, a)
		}
	}
	return w.host.NetworkReady(ctx, in.pod, addresses)
}

// createContainer creates the container. cleanup, which may be nil, undoes what was made for this container alone, also after an error.
func (w *Worker) createContainer(ctx context.Context, in startInput) (id string, cleanup func(), err error) {
	if in.stale != "" {
		if err := w.host.Runtime.RemoveContainer(ctx, in.stale); err != nil && !cri.NotFound(err) {
			return "", nil, &startError{errCreate, err}
		}
		w.mailbox.post(func() { w.observed.Remove(in.stale) })
	}
	if err := w.networkReady(ctx, in); err != nil {
		return "", nil, &startError{errNetwork, err}
	}
	if in.grow {
		if err := w.host.growGroup(in.pod); err != nil {
			return "", nil, &startError{errConfig, err}
		}
	}
	env, err := w.host.Volumes.Env(ctx, in.pod, in.container, volume.EnvInput{PodIPs: in.podIPs, HostIPs: w.host.HostIPs, Mounts: in.mounts})
	if err != nil {
		return "", nil, &startError{errConfig, err}
	}
	mounts, cleanup, err := w.host.Volumes.ContainerMounts(in.pod, in.container, in.mounts, env)
	if err != nil {
		return "", cleanup, &startError{errConfig, err}
	}
	devices, err := w.host.Volumes.ContainerDevices(in.container, in.mounts)
	if err != nil {
		return "", cleanup, &startError{errConfig, err}
	}
	user, err := w.host.Images.User(ctx, in.image)
	if err != nil {
		return "", cleanup, &startError{errConfig, err}
	}
	users, err := w.host.userNamespace(in.pod, in.handler)
	if err != nil {
		return "", cleanup, &startError{errConfig, err}
	}
	allocated, err := w.host.Allocator.ForContainer(ctx, in.pod, in.container)
	if err != nil {
		return "", cleanup, &startError{errConfig, err}
	}
	if err := w.host.Claims.ForContainer(in.pod, in.container, &allocated); err != nil {
		return "", cleanup, &startError{errConfig, err}
	}
	cfg, err := w.host.Config.Container(criconfig.ContainerInput{
		Pod: in.pod, Container: in.container, Attempt: in.attempt, ImageRef: in.image, User: user, Env: env,
		Mounts: mounts, Devices: devices, PodIPs: in.podIPs, TargetID: in.target, MemoryCapacity: w.host.MemoryCapacity, Users: users,
		Allocation: allocated,
	})
	if err != nil {
		return "", cleanup, &startError{errConfig, err}
	}
	box, _, err := w.host.Config.Sandbox(in.pod, criconfig.SandboxInput{
		Attempt: in.sandbox.Attempt, CgroupParent: w.host.Cgroups.Path(in.pod.UID, v1qos.GetPodQOS(in.pod)), Users: users})
	if err != nil {
		return "", cleanup, &startError{errConfig, err}
	}
	id, err = w.host.Runtime.CreateContainer(context.WithoutCancel(ctx), in.sandbox.ID, cfg, box)
	if err != nil {
		return "", cleanup, &startError{errCreate, err}
	}
	return id, cleanup, nil
}

// containerStatus asks the runtime for a container's status. It is nil when the runtime does not answer; an event or the next
// list corrects the worker's state then.
func (w *Worker) containerStatus(ctx context.Context, id string) *runtimeapi.ContainerStatus {
	r, err := w.host.Runtime.ContainerStatus(ctx, id, false)
	if err != nil {
		w.host.Logger.Warn("the runtime does not report a container's status; the next event or list is waited for", "pod", w.uid, "container", id, "err", err)
		return nil
	}
	return r.Status
}

// observe takes a container's status into the worker's state.
func (w *Worker) observe(s *runtimeapi.ContainerStatus, sandboxID string) {
	in, changed := w.observed.Merge(criconfig.InstanceOf(s, sandboxID))
	if in.State == podloop.StateExited && !in.TerminationMessage {
		in.TerminationMessage = true
		w.readTerminationMessage(in, v1.TerminationMessagePolicy(s.Annotations[criconfig.AnnotationTerminationPolicy]))
	}
	if changed && in.State == podloop.StateExited {
		_, kind := podloop.FindContainer(w.pod, in.Name)
		w.host.Counters.ContainerEnded(kind.Label(), in.ExitCode, in.Reason)
		if w.observed.Latest(in.Name) == in {
			w.host.Probes.Stop(w.uid, in.Name)
		}
		delete(w.observed.Unhealthy, in.ID)
		delete(w.observed.KillRetry, in.Name)
		w.observed.Actual.Ended(in.Name, in.ID)
		w.runCleanup(in.ID)
	}
}

// setRetry sets the retry of a container; nil removes it.
func setRetry(m map[string]*podloop.Retry, container string, r *podloop.Retry) {
	if r == nil {
		delete(m, container)
		return
	}
	m[container] = r
}

// killInput is what the worker's goroutine gives to the stop of a container.
type killInput struct {
	pod       *v1.Pod
	container *v1.Container
	kind      podloop.ContainerKind
	id        string
	grace     int64
	message   string
	podIPs    []string
}

func (w *Worker) killContainer(a podloop.Action) operation {
	c, kind := podloop.FindContainer(w.pod, a.Container)
	in := killInput{pod: w.pod, container: c, kind: kind, id: a.ID, grace: a.Grace, message: a.Message, podIPs: podloop.PodIPs(w.pod, w.observed, w.host.HostIPs)}
	sandboxID := ""
	if i := w.observed.ByID(a.ID); i != nil {
		sandboxID = i.SandboxID
		i.ByProbe = a.Reason == "liveness" || a.Reason == "startup"
		i.Replaced = a.Reason == podloop.Replace
	}
	return func(ctx context.Context) func() {
		err := w.stopContainer(ctx, in)
		var s *runtimeapi.ContainerStatus
		if err == nil {
			s = w.containerStatus(ctx, in.id)
			if s.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
				err = errStillRuns
			}
		}
		if cri.NotFound(err) {
			err = nil
		}
		cut := ctx.Err() != nil // a stop with a shorter grace period has replaced this one, or the process ends
		return func() {
			if err != nil && cut {
				return
			}
			setRetry(w.observed.KillRetry, a.Container, w.observed.KillRetry[a.Container].After(w.observed.Now, "FailedKillPod", err))
			switch {
			case err != nil:
				w.host.Logger.Warn("the runtime cannot stop a container; it is tried again", "pod", podloop.PodName(in.pod), "container", a.Container, "err", err)
			case s != nil:
				w.observe(s, sandboxID)
			default:
				w.observed.Remove(in.id)
			}
		}
	}
}

// stopContainer runs the preStop hook and then has the runtime stop the container. Both share the grace period; after the hook
// at least podloop.MinGraceSeconds remain.
func (w *Worker) stopContainer(ctx context.Context, in killInput) error {
	if in.message != "" {
		name := ""
		if in.container != nil {
			name = in.container.Name
		}
		w.containerEventOf(in.pod, name, in.kind, v1.EventTypeNormal, "Killing", in.message)
	}
	grace := time.Duration(in.grace) * time.Second
	if grace > 0 && in.container != nil && in.container.Lifecycle != nil && in.container.Lifecycle.PreStop != nil {
		began := time.Now()
		hctx, cancel := context.WithTimeout(ctx, grace)
		err := w.host.runHook(hctx, hookTarget{in.pod, in.container, in.id, in.podIPs}, in.container.Lifecycle.PreStop)
		cancel()
		if err != nil && ctx.Err() == nil {
			w.containerEventOf(in.pod, in.container.Name, in.kind, v1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
		}
		grace = max(grace-time.Since(began), podloop.MinGraceSeconds*time.Second)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	seconds := int64((grace + time.Second - 1) / time.Second)
	return w.host.Runtime.StopContainer(ctx, in.id, seconds)
}
