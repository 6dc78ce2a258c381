package podloop

import (
	"time"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// Verb says what an action does.
type Verb string

const (
	AllocateResources Verb = "allocate"       // give the pod devices and what else it has for itself
	PrepareClaims     Verb = "prepare claims" // have drivers prepare the devices of ResourceClaims
	SetUpVolumes      Verb = "volumes"        // make the pod's directory, cgroup and volumes
	CreateSandbox     Verb = "sandbox"        // run a new pod sandbox
	PullImage         Verb = "image"          // make one container's image present
	StartContainer    Verb = "start"          // create and start one container, run its postStart hook
	KillContainer     Verb = "kill"           // preStop, SIGTERM, SIGKILL
	StopSandbox       Verb = "stop-sandbox"   // tear down the pod's network
	TearDown          Verb = "tear-down"      // remove volumes and cgroup
	DeletePod         Verb = "delete"         // remove the pod from the API
	PurgePod          Verb = "purge"          // remove containers, sandboxes and logs from the machine
	PruneContainers   Verb = "prune"          // remove old dead containers
	ResizePod         Verb = "resize"         // give the pod's cgroup and its running containers what is allocated
	RestartAll        Verb = "restart-all"    // begin anew with the first init container
	FailPod           Verb = "fail"           // the pod has failed as a whole
)

// Action is one thing to do now. Container is empty when the action is about the whole pod.
type Action struct {
	Verb      Verb
	Container string
	ID        string // of a container or sandbox in the runtime, for KillContainer and StopSandbox
	Attempt   int    // restart count, of StartContainer; attempt of the sandbox, of CreateSandbox
	Grace     int64  // grace period of KillContainer, in seconds
	Reason    string
	Message   string
	IDs       []string // of doPrune
}

// Replace is the reason of a KillContainer after which the container starts again at once, whatever its restart policy.
const Replace = "replace"

// OperationKey names an operation in flight. At most one operation of a key is in flight.
type OperationKey struct {
	Verb      Verb
	Container string
}

func (a Action) Key() OperationKey { return OperationKey{a.Verb, a.Container} }

// Waiting is the reason and message of a container's state "waiting" in the pod's status.
type Waiting struct{ Reason, Message string }

// Decision is what Next returns: the actions to begin now, the time to look again at the latest (zero: not before something
// happens), and why each container that does not run waits, by name.
type Decision struct {
	Actions []Action
	Wake    time.Time
	Waiting map[string]Waiting
	// Stopping: nothing of this pod may be started any more.
	Stopping bool
	// Stopped: no container of this pod runs or will run.
	Stopped bool
	// Done: nothing of the pod is left on the machine and in the API.
	Done bool
}

func (d *Decision) add(a Action) { d.Actions = append(d.Actions, a) }

func (d *Decision) wakeAt(t time.Time) {
	if !t.IsZero() && (d.Wake.IsZero() || t.Before(d.Wake)) {
		d.Wake = t
	}
}

func (d *Decision) waitFor(container, reason, message string) {
	d.Waiting[container] = Waiting{reason, message}
}

// Next decides what to do now from the pod's spec and from what has been observed of the pod. It changes neither.
func Next(pod *v1.Pod, o *Observed) Decision {
	d := Decision{Waiting: map[string]Waiting{}}
	if why := stopReason(pod, o, &d); why != "" {
		d.Stopping = true
		stopPod(pod, o, &d, why)
		return d
	}
	if !restartAll(pod, o, &d) {
		runPod(pod, o, &d)
	}
	return d
}

// stopReason returns why everything of the pod has to end, "" when the pod goes on.
func stopReason(pod *v1.Pod, o *Observed, d *Decision) string {
	switch {
	case o.Gone, pod.DeletionTimestamp != nil:
		return "deleted"
	case o.Failed != nil:
		return o.Failed.Reason
	case pod.Status.Phase == v1.PodFailed || pod.Status.Phase == v1.PodSucceeded:
		return "finished"
	}
	if s := pod.Spec.ActiveDeadlineSeconds; s != nil && !o.StartTime.IsZero() {
		deadline := o.StartTime.Add(time.Duration(*s) * time.Second)
		if !o.Now.Before(deadline) {
			d.add(Action{Verb: FailPod, Reason: "DeadlineExceeded",
				Message: "Pod was active on the node longer than the specified deadline"})
			return "DeadlineExceeded"
		}
		d.wakeAt(deadline)
	}
	if allExited(pod, o) {
		return "finished"
	}
	return ""
}

// allExited reports whether the pod ran to its end: each container has exited and is not restarted, or an init container has
// failed and is not restarted.
func allExited(pod *v1.Pod, o *Observed) bool {
	if o.anyBusy(StartContainer) {
		return false
	}
	if initializationFailed(pod, o) {
		return true
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		in := o.Latest(c.Name)
		if in == nil || in.State != StateExited || restarts(pod, c, in) {
			return false
		}
	}
	return len(pod.Spec.Containers) > 0
}

func initializationFailed(pod *v1.Pod, o *Observed) bool {
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if podutil.IsRestartableInitContainer(c) {
			continue
		}
		in := o.Latest(c.Name)
		if in != nil && in.State == StateExited && in.ExitCode != 0 && !restarts(pod, c, in) {
			return true
		}
	}
	return false
}

// restartsAfter reports whether a container that exited with code is started again, by its restart policy and rules.
func restartsAfter(pod *v1.Pod, c *v1.Container, code int32) bool {
	return podutil.ContainerShouldRestart(*c, pod.Spec, code)
}

// restarts reports whether a container that has exited is started again: by its policy, or because the node stopped it for that.
func restarts(pod *v1.Pod, c *v1.Container, in *Instance) bool {
	return in.Replaced || in.Obsolete || restartsAfter(pod, c, in.ExitCode)
}

// runPod adds the actions that a pod needs which is not stopping.
func runPod(pod *v1.Pod, o *Observed, d *Decision) {
	ground := prepareSandbox(pod, o, d)
	if !ground {
		// Pulling needs no sandbox: it goes on beside its creation.
		for _, c := range firstToStart(pod, o) {
			ensureImage(o, c, d)
		}
		setAllWaiting(pod, d)
		return
	}
	for i := range pod.Spec.EphemeralContainers {
		c := ephemeralContainer(&pod.Spec.EphemeralContainers[i])
		if o.Latest(c.Name) == nil {
			startContainer(pod, o, c, d)
		}
	}
	if runInitContainers(pod, o, d) {
		for i := range pod.Spec.Containers {
			runContainer(pod, o, &pod.Spec.Containers[i], d)
		}
	} else {
		for i := range pod.Spec.Containers {
			d.waitFor(pod.Spec.Containers[i].Name, "PodInitializing", "")
		}
	}
	resizePod(pod, o, d)
	pruneContainers(o, d)
}

// prepareSandbox adds the actions that make volumes and sandbox, and reports whether containers may start.
func prepareSandbox(pod *v1.Pod, o *Observed, d *Decision) bool {
	if o.Unallocated {
		if !o.IsBusy(AllocateResources, "") {
			d.add(Action{Verb: AllocateResources})
		}
		return false
	}
	if o.Unprepared {
		if !o.IsBusy(PrepareClaims, "") && RetryDue(o, o.ClaimsRetry, d) {
			d.add(Action{Verb: PrepareClaims})
		}
		return false
	}
	if !o.Volumes && !o.IsBusy(SetUpVolumes, "") && RetryDue(o, o.VolumesRetry, d) {
		d.add(Action{Verb: SetUpVolumes})
	}
	if o.Sandbox != nil && !o.Sandbox.Ready {
		// The sandbox died: first the containers that still run in it are stopped, then a new sandbox is created.
		if !killContainers(pod, o, d, "", "Pod sandbox changed, it will be killed and re-created.", GracePeriod(pod, nil)) {
			return false
		}
		if !o.Sandbox.Stopped {
			if !o.IsBusy(StopSandbox, "") && RetryDue(o, o.SandboxRetry, d) {
				d.add(Action{Verb: StopSandbox, ID: o.Sandbox.ID})
			}
			return false
		}
	}
	if o.Sandbox == nil || !o.Sandbox.Ready {
		mayStart := o.Volumes || (o.IsBusy(SetUpVolumes, "") || o.VolumesRetry == nil) && !volumesMayBlock(pod)
		if mayStart && !o.IsBusy(CreateSandbox, "") && RetryDue(o, o.SandboxRetry, d) {
			attempt := 0
			if o.Sandbox != nil {
				attempt = int(o.Sandbox.Attempt) + 1
			}
			d.add(Action{Verb: CreateSandbox, Attempt: attempt})
		}
		return false
	}
	return o.Volumes
}

// volumesMayBlock reports whether a volume may have to wait for an object that does not exist yet, such as a Secret. Then no
// sandbox is created before the volumes are there.
func volumesMayBlock(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.EmptyDir != nil, v.DownwardAPI != nil:
		case v.HostPath != nil && (v.HostPath.Type == nil || *v.HostPath.Type == v1.HostPathUnset):
		case v.Projected != nil && isTokenProjection(v.Projected):
		default:
			return true
		}
	}
	return false
}

// isTokenProjection reports whether a volume is the service-account volume that each pod has. It does not block: its
// ConfigMap is created with the namespace.
func isTokenProjection(p *v1.ProjectedVolumeSource) bool {
	for _, s := range p.Sources {
		if s.Secret != nil || s.ConfigMap != nil && s.ConfigMap.Name != "kube-root-ca.crt" {
			return false
		}
	}
	return true
}

// firstToStart returns the containers that start first once the sandbox is there; their images are pulled meanwhile.
func firstToStart(pod *v1.Pod, o *Observed) []*v1.Container {
	if len(pod.Spec.InitContainers) > 0 && !anyRegularStarted(pod, o) {
		return []*v1.Container{&pod.Spec.InitContainers[0]}
	}
	var cs []*v1.Container
	for i := range pod.Spec.Containers {
		if in := o.Latest(pod.Spec.Containers[i].Name); in == nil {
			cs = append(cs, &pod.Spec.Containers[i])
		}
	}
	return cs
}

func setAllWaiting(pod *v1.Pod, d *Decision) {
	reason := "ContainerCreating"
	if len(pod.Spec.InitContainers) > 0 {
		reason = "PodInitializing"
	}
	podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *v1.Container, _ podutil.ContainerType) bool {
		if _, said := d.Waiting[c.Name]; !said {
			d.waitFor(c.Name, reason, "")
		}
		return true
	})
}

// anyRegularStarted reports whether a regular container was started in the present sandbox. Then initialization is over, even
// if the init containers were removed since.
func anyRegularStarted(pod *v1.Pod, o *Observed) bool {
	for i := range pod.Spec.Containers {
		if in := o.Latest(pod.Spec.Containers[i].Name); in != nil && o.inSandbox(in) {
			return true
		}
	}
	return false
}

// runInitContainers adds the actions for init containers in their order, and reports whether all of them are far enough for
// regular containers to start: ended with 0, or, of a sidecar, started.
func runInitContainers(pod *v1.Pod, o *Observed, d *Decision) bool {
	initialized := anyRegularStarted(pod, o)
	open := true // all init containers before this one are far enough
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if !open {
			d.waitFor(c.Name, "PodInitializing", "")
			continue
		}
		if podutil.IsRestartableInitContainer(c) {
			up := runContainer(pod, o, c, d)
			open = initialized || up && o.hasStarted(c)
			continue
		}
		in := o.Latest(c.Name)
		switch {
		case in != nil && o.inSandbox(in) && in.State == StateExited && in.ExitCode == 0:
		case initialized:
		default:
			open = false
			runContainer(pod, o, c, d)
		}
	}
	return open
}

// runContainer adds the action that one container needs, and reports whether the container runs.
func runContainer(pod *v1.Pod, o *Observed, c *v1.Container, d *Decision) bool {
	in := o.Latest(c.Name)
	if o.IsBusy(StartContainer, c.Name) {
		d.waitFor(c.Name, creatingReason(pod), "")
		return in != nil && in.State == StateRunning
	}
	switch {
	case in == nil || !o.inSandbox(in) && in.State != StateRunning:
		startContainer(pod, o, c, d)
		return false
	case in.State == StateCreated:
		startContainer(pod, o, c, d)
		return false
	case in.State == StateRunning:
		return checkRunning(pod, o, c, in, d)
	}
	if !restarts(pod, c, in) {
		return false
	}
	if at := restartAt(o, c.Name, in); !in.Outdated(c) && o.Now.Before(at) {
		d.wakeAt(at)
		delay := o.Backoff[c.Name].Delay
		d.waitFor(c.Name, "CrashLoopBackOff", crashLoopMessage(delay, c.Name, pod))
		return false
	}
	startContainer(pod, o, c, d)
	return false
}

func creatingReason(pod *v1.Pod) string {
	if len(pod.Spec.InitContainers) > 0 {
		return "PodInitializing"
	}
	return "ContainerCreating"
}

// checkRunning adds the stop that a running container needs when its spec changed, a probe failed, or its resize asks for a
// restart. It returns true: the container runs.
func checkRunning(pod *v1.Pod, o *Observed, c *v1.Container, in *Instance, d *Decision) bool {
	switch {
	case o.IsBusy(KillContainer, c.Name):
	case mustBeReplaced(pod, o, c, in) && !RetryDue(o, o.KillRetry[c.Name], d):
	case in.Outdated(c):
		d.add(Action{Verb: KillContainer, Container: c.Name, ID: in.ID, Grace: GracePeriod(pod, nil), Reason: Replace,
			Message: "Container " + c.Name + " definition changed, will be restarted"})
	case o.Unhealthy[in.ID] != nil:
		u := o.Unhealthy[in.ID]
		d.add(Action{Verb: KillContainer, Container: c.Name, ID: in.ID, Grace: u.Grace, Reason: u.Kind,
			Message: "Container " + c.Name + " failed " + u.Kind + " probe" + restartSuffix(pod, c)})
	case restartsToResize(pod, o, c):
		d.add(Action{Verb: KillContainer, Container: c.Name, ID: in.ID, Grace: GracePeriod(pod, nil), Reason: Replace,
			Message: "Container " + c.Name + " resize requires restart"})
	}
	return true
}

// mustBeReplaced reports whether a running container has to be stopped and started again.
func mustBeReplaced(pod *v1.Pod, o *Observed, c *v1.Container, in *Instance) bool {
	return in.Outdated(c) || o.Unhealthy[in.ID] != nil || restartsToResize(pod, o, c)
}

func restartSuffix(pod *v1.Pod, c *v1.Container) string {
	if restartsAfter(pod, c, 1) {
		return ", will be restarted"
	}
	return ""
}
