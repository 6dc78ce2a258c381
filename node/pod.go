package node

import (
	"time"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// verb says what an action does.
type verb string

const (
	doVolumes     verb = "volumes"      // make the pod's directories, cgroup and volumes
	doSandbox     verb = "sandbox"      // run a new pod sandbox
	doImage       verb = "image"        // make one container's image present
	doStart       verb = "start"        // create and start one container, run its postStart hook
	doKill        verb = "kill"         // preStop, SIGTERM, SIGKILL
	doStopSandbox verb = "stop-sandbox" // tear down the pod's network
	doTearDown    verb = "tear-down"    // remove volumes and cgroup
	doDelete      verb = "delete"       // remove the pod from the API
	doPurge       verb = "purge"        // remove containers, sandboxes and logs from the machine
	doPrune       verb = "prune"        // remove containers that nobody will ask for
	doResize      verb = "resize"       // give a running container its new resources
	doFail        verb = "fail"         // the pod has failed as a whole
)

// action is one thing to do now. Container is empty for what concerns the pod.
type action struct {
	Verb      verb
	Container string
	ID        string // container or sandbox, where one is meant
	Attempt   int    // restart count of what is started
	Grace     int64  // seconds, of doKill
	Reason    string
	Message   string
	IDs       []string // of doPrune
}

// opKey names an operation in flight: of each there is at most one.
type opKey struct {
	Verb      verb
	Container string
}

func (a action) key() opKey { return opKey{a.Verb, a.Container} }

// waiting is why a container does not run, as its status says it.
type waiting struct{ Reason, Message string }

// decision is what next found: what to do now, when to look again at the
// latest (zero: when something happens), and what to say of each container
// that does not run.
type decision struct {
	Actions []action
	Wake    time.Time
	Waiting map[string]waiting
	// Stopping: nothing of this pod shall be started any more.
	Stopping bool
	// Stopped: no container of this pod runs or will run.
	Stopped bool
	// Done: nothing is left on the machine and in the API; the worker may end.
	Done bool
}

func (d *decision) do(a action) { d.Actions = append(d.Actions, a) }

func (d *decision) wakeAt(t time.Time) {
	if !t.IsZero() && (d.Wake.IsZero() || t.Before(d.Wake)) {
		d.Wake = t
	}
}

func (d *decision) wait(container, reason, message string) {
	d.Waiting[container] = waiting{reason, message}
}

// next is the heart of the agent: from what the pod should be and what has
// been observed of it, what to do now. Pure.
func next(pod *v1.Pod, o *observed) decision {
	d := decision{Waiting: map[string]waiting{}}
	if why := stopReason(pod, o, &d); why != "" {
		d.Stopping = true
		stop(pod, o, &d, why)
		return d
	}
	run(pod, o, &d)
	return d
}

// stopReason says why everything of the pod has to end, "" when it shall live.
func stopReason(pod *v1.Pod, o *observed, d *decision) string {
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
			d.do(action{Verb: doFail, Reason: "DeadlineExceeded",
				Message: "Pod was active on the node longer than the specified deadline"})
			return "DeadlineExceeded"
		}
		d.wakeAt(deadline)
	}
	if completed(pod, o) {
		return "finished"
	}
	return ""
}

// completed reports whether the pod ran to its end: every container has exited
// for good, or initialization has failed for good.
func completed(pod *v1.Pod, o *observed) bool {
	if o.anyBusy(doStart) {
		return false
	}
	if initFailed(pod, o) {
		return true
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		in := o.latest(c.Name)
		if in == nil || in.State != stateExited || restarts(pod, c, in.ExitCode) {
			return false
		}
	}
	return len(pod.Spec.Containers) > 0
}

func initFailed(pod *v1.Pod, o *observed) bool {
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if podutil.IsRestartableInitContainer(c) {
			continue
		}
		in := o.latest(c.Name)
		if in != nil && in.State == stateExited && in.ExitCode != 0 && !restarts(pod, c, in.ExitCode) {
			return true
		}
	}
	return false
}

// restarts reports whether a container that exited with code is started again.
func restarts(pod *v1.Pod, c *v1.Container, code int32) bool {
	return podutil.ContainerShouldRestart(*c, pod.Spec, code)
}

// run brings a living pod forward.
func run(pod *v1.Pod, o *observed, d *decision) {
	ground := prepare(pod, o, d)
	if !ground {
		// Pulling needs no sandbox: it goes on beside its creation.
		for _, c := range wanted(pod, o) {
			ensureImage(o, c, d)
		}
		waitAll(pod, d)
		return
	}
	for i := range pod.Spec.EphemeralContainers {
		c := ephemeral(&pod.Spec.EphemeralContainers[i])
		if o.latest(c.Name) == nil {
			start(pod, o, c, d)
		}
	}
	if runInit(pod, o, d) {
		for i := range pod.Spec.Containers {
			runContainer(pod, o, &pod.Spec.Containers[i], d)
		}
	} else {
		for i := range pod.Spec.Containers {
			d.wait(pod.Spec.Containers[i].Name, "PodInitializing", "")
		}
	}
	prune(o, d)
}

// prepare makes volumes and sandbox; true when containers may start.
func prepare(pod *v1.Pod, o *observed, d *decision) bool {
	if !o.Volumes && !o.busy(doVolumes, "") && due(o, o.VolumesRetry, d) {
		d.do(action{Verb: doVolumes})
	}
	if o.Sandbox != nil && !o.Sandbox.Ready {
		// The sandbox died: what still runs in it goes first, then a new one.
		if !killAll(pod, o, d, "", "Pod sandbox changed, it will be killed and re-created.", graceOf(pod, nil)) {
			return false
		}
		if !o.Sandbox.Stopped {
			if !o.busy(doStopSandbox, "") && due(o, o.SandboxRetry, d) {
				d.do(action{Verb: doStopSandbox, ID: o.Sandbox.ID})
			}
			return false
		}
	}
	if o.Sandbox == nil || !o.Sandbox.Ready {
		mayStart := o.Volumes || (o.busy(doVolumes, "") || o.VolumesRetry == nil) && !volumesMayWait(pod)
		if mayStart && !o.busy(doSandbox, "") && due(o, o.SandboxRetry, d) {
			attempt := 0
			if o.Sandbox != nil {
				attempt = int(o.Sandbox.Attempt) + 1
			}
			d.do(action{Verb: doSandbox, Attempt: attempt})
		}
		return false
	}
	return o.Volumes
}

// volumesMayWait reports whether a volume may have to wait for something that
// does not exist yet; then no sandbox is made before the volumes are there.
func volumesMayWait(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.EmptyDir != nil, v.DownwardAPI != nil:
		case v.HostPath != nil && (v.HostPath.Type == nil || *v.HostPath.Type == v1.HostPathUnset):
		case v.Projected != nil && tokenProjection(v.Projected):
		default:
			return true
		}
	}
	return false
}

// tokenProjection: the service-account volume every pod has. Its ConfigMap is
// made with the namespace.
func tokenProjection(p *v1.ProjectedVolumeSource) bool {
	for _, s := range p.Sources {
		if s.Secret != nil || s.ConfigMap != nil && s.ConfigMap.Name != "kube-root-ca.crt" {
			return false
		}
	}
	return true
}

// wanted lists the containers that start first once the sandbox is there.
func wanted(pod *v1.Pod, o *observed) []*v1.Container {
	if len(pod.Spec.InitContainers) > 0 && !anyRegular(pod, o) {
		return []*v1.Container{&pod.Spec.InitContainers[0]}
	}
	var cs []*v1.Container
	for i := range pod.Spec.Containers {
		if in := o.latest(pod.Spec.Containers[i].Name); in == nil {
			cs = append(cs, &pod.Spec.Containers[i])
		}
	}
	return cs
}

func waitAll(pod *v1.Pod, d *decision) {
	reason := "ContainerCreating"
	if len(pod.Spec.InitContainers) > 0 {
		reason = "PodInitializing"
	}
	podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *v1.Container, _ podutil.ContainerType) bool {
		if _, said := d.Waiting[c.Name]; !said {
			d.wait(c.Name, reason, "")
		}
		return true
	})
}

// anyRegular reports whether a regular container was started in the present
// sandbox: then initialization is over, whatever was pruned since.
func anyRegular(pod *v1.Pod, o *observed) bool {
	for i := range pod.Spec.Containers {
		if in := o.latest(pod.Spec.Containers[i].Name); in != nil && o.here(in) {
			return true
		}
	}
	return false
}

// runInit brings init containers forward in order; true when all of them let
// the regular containers start.
func runInit(pod *v1.Pod, o *observed, d *decision) bool {
	initialized := anyRegular(pod, o)
	open := true // every earlier one is through
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if !open {
			d.wait(c.Name, "PodInitializing", "")
			continue
		}
		if podutil.IsRestartableInitContainer(c) {
			up := runContainer(pod, o, c, d)
			open = initialized || up && o.startedUp(c)
			continue
		}
		in := o.latest(c.Name)
		switch {
		case in != nil && o.here(in) && in.State == stateExited && in.ExitCode == 0:
		case initialized:
		default:
			open = false
			runContainer(pod, o, c, d)
		}
	}
	return open
}

// runContainer keeps one container as it should be; true when it runs.
func runContainer(pod *v1.Pod, o *observed, c *v1.Container, d *decision) bool {
	in := o.latest(c.Name)
	if o.busy(doStart, c.Name) {
		d.wait(c.Name, creating(pod), "")
		return in != nil && in.State == stateRunning
	}
	switch {
	case in == nil || !o.here(in) && in.State != stateRunning:
		start(pod, o, c, d)
		return false
	case in.State == stateCreated:
		start(pod, o, c, d)
		return false
	case in.State == stateRunning:
		return keep(pod, o, c, in, d)
	}
	if !restarts(pod, c, in.ExitCode) {
		return false
	}
	if at := restartAt(o, c.Name, in); o.Now.Before(at) {
		d.wakeAt(at)
		delay := o.Backoff[c.Name].Delay
		d.wait(c.Name, "CrashLoopBackOff", crashMessage(delay, c.Name, pod))
		return false
	}
	start(pod, o, c, d)
	return false
}

func creating(pod *v1.Pod) string {
	if len(pod.Spec.InitContainers) > 0 {
		return "PodInitializing"
	}
	return "ContainerCreating"
}

// keep judges a running container.
func keep(pod *v1.Pod, o *observed, c *v1.Container, in *instance, d *decision) bool {
	switch {
	case o.busy(doKill, c.Name):
	case wantsKill(o, c, in) && !due(o, o.KillRetry[c.Name], d):
	case in.Hash != "" && in.Hash != containerHash(c):
		d.do(action{Verb: doKill, Container: c.Name, ID: in.ID, Grace: graceOf(pod, nil),
			Message: "Container " + c.Name + " definition changed, will be restarted"})
	case o.Unhealthy[in.ID] != nil:
		u := o.Unhealthy[in.ID]
		d.do(action{Verb: doKill, Container: c.Name, ID: in.ID, Grace: u.Grace, Reason: u.Kind,
			Message: "Container " + c.Name + " failed " + u.Kind + " probe" + willRestart(pod, c)})
	case o.Resized[c.Name] && !o.busy(doResize, c.Name) && due(o, o.ResizeRetry[c.Name], d):
		d.do(action{Verb: doResize, Container: c.Name, ID: in.ID})
	}
	return true
}

// wantsKill reports whether a running container has to make way for another run.
func wantsKill(o *observed, c *v1.Container, in *instance) bool {
	return in.Hash != "" && in.Hash != containerHash(c) || o.Unhealthy[in.ID] != nil
}

func willRestart(pod *v1.Pod, c *v1.Container) string {
	if restarts(pod, c, 1) {
		return ", will be restarted"
	}
	return ""
}
