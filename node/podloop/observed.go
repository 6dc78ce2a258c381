package podloop

import (
	"sort"
	"time"

	v1 "k8s.io/api/core/v1"
)

// InstanceState is how far one run of a container got; it only moves forward.
type InstanceState uint8

const (
	StateCreated InstanceState = iota
	StateRunning
	StateExited
)

// Instance is one container in the runtime, which is one run of a container of the spec.
type Instance struct {
	ID, SandboxID, Name    string
	State                  InstanceState
	Attempt                int // restart count
	Created                time.Time
	Started, Finished      time.Time
	ExitCode               int32
	Reason, Message        string
	Image, ImageID         string
	Hash                   string
	LogPath                string
	TerminationMessage     bool // Message is complete
	ByProbe                bool // it was stopped because a probe failed
	Replaced               bool // it was stopped to be started again
	Obsolete               bool // all containers restart; it counts as little as one of an earlier sandbox
	User                   *v1.ContainerUser
	TerminationMessageFile string // host path of the termination message
}

// Sandbox is the pod's newest sandbox in the runtime.
type Sandbox struct {
	ID      string
	Handler string // runtime handler, "" for the default
	Attempt uint32
	Ready   bool
	Stopped bool // StopPodSandbox has succeeded
	IPs     []string
	Created time.Time
}

// Image is what is known of the image for a container's next start.
type Image struct {
	Ref     string            // the reference to give to CreateContainer; empty: the image is not known to be present
	Volumes map[string]string // references of the images that the container mounts, by volume
	Retry   *Retry
}

// Failure is the reason for which a pod failed as a whole: refused by the node, over its deadline, evicted.
type Failure struct{ Reason, Message string }

// Unhealthy says that a probe failed and the container has to be stopped.
type Unhealthy struct {
	Kind  string // "liveness", "startup"
	Grace int64
}

// Observed is everything that Next looks at besides the pod's spec. Only the pod's worker writes it.
type Observed struct {
	Now           time.Time
	StartTime     time.Time
	StoppingSince time.Time
	Gone          bool     // the API has no such pod
	KeepsGrace    bool     // Gone, and not by force: the grace period of the pod counts
	Failed        *Failure // the pod failed as a whole
	Unallocated   bool     // the pod waits for devices, or for what else it is to have for itself
	Disruption    *Failure // reason and message of the condition DisruptionTarget, which goes with Failed
	GraceLimit    *int64   // the node ends the pod: the longest grace period of containers, in seconds
	Unprepared    bool     // the pod waits for the devices of its ResourceClaims
	Volumes       bool     // volumes, directories and cgroup are there
	TornDown      bool     // volumes, directories and cgroup were removed
	PanicRetry    *Retry   // set while the handling of the pod has panicked and has not succeeded since
	Purged        bool     // nothing of the pod is left in the runtime and on the disk
	StatusFresh   bool     // the pod's status in the API is the one that follows from this
	Sandbox       *Sandbox
	Containers    map[string][]*Instance // by name, oldest first
	Images        map[string]Image       // by container name
	Backoff       map[string]Backoff     // by container name
	Unhealthy     map[string]*Unhealthy  // by container ID
	StartedUp     map[string]bool        // by container ID: the startup probe has passed
	Ready         map[string]bool        // by container ID: the readiness probe passes
	Busy          map[OperationKey]int64 // operations in flight; the value is the grace period of KillContainer in seconds

	// Actual is how the cgroups differ from the pod's allocation, which is in its spec.
	Actual Actual
	// Undecided: the pod in the API asks for resources that the node has not judged yet.
	Undecided bool
	Pending   *Pending  // why a resize is not allocated; nil: none is asked for
	Resizing  *Resizing // the resize that is carried out; nil: none

	// Failures by operation, and by container name where there is one for each. An operation that failed is begun again
	// when its retry is due, and not before.
	ClaimsRetry, VolumesRetry, SandboxRetry, TearDownRetry, DeleteRetry, PurgeRetry, PruneRetry, ResizeRetry *Retry
	StartRetry, KillRetry                                                                                    map[string]*Retry
}

func NewObserved() *Observed {
	return &Observed{
		Containers: map[string][]*Instance{}, Images: map[string]Image{}, Backoff: map[string]Backoff{},
		Unhealthy: map[string]*Unhealthy{}, StartedUp: map[string]bool{}, Ready: map[string]bool{},
		Busy:       map[OperationKey]int64{},
		StartRetry: map[string]*Retry{}, KillRetry: map[string]*Retry{},
	}
}

func (o *Observed) IsBusy(v Verb, container string) bool {
	_, ok := o.Busy[OperationKey{v, container}]
	return ok
}

func (o *Observed) anyBusy(v Verb) bool {
	for k := range o.Busy {
		if k.Verb == v {
			return true
		}
	}
	return false
}

// killGrace returns the grace period of the stop in flight.
func (o *Observed) killGrace(container string) (int64, bool) {
	g, ok := o.Busy[OperationKey{KillContainer, container}]
	return g, ok
}

// Latest is the newest instance of a container, nil when there is none.
func (o *Observed) Latest(name string) *Instance {
	ins := o.Containers[name]
	if len(ins) == 0 {
		return nil
	}
	return ins[len(ins)-1]
}

// previous is the instance before the newest one.
func (o *Observed) previous(name string) *Instance {
	ins := o.Containers[name]
	if len(ins) < 2 {
		return nil
	}
	return ins[len(ins)-2]
}

// inSandbox reports whether an instance belongs to the pod's present sandbox, and counts.
func (o *Observed) inSandbox(in *Instance) bool {
	return !in.Obsolete && o.Sandbox != nil && in.SandboxID == o.Sandbox.ID
}

// hasStarted reports whether the container runs and has passed its postStart hook and its startup probe.
func (o *Observed) hasStarted(c *v1.Container) bool {
	in := o.Latest(c.Name)
	if in == nil || in.State != StateRunning || o.IsBusy(StartContainer, c.Name) {
		return false
	}
	return c.StartupProbe == nil || o.StartedUp[in.ID]
}

func (o *Observed) ContainerNames() []string {
	names := make([]string, 0, len(o.Containers))
	for n := range o.Containers {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// ByID returns the instance of a container ID, nil when there is none.
func (o *Observed) ByID(id string) *Instance {
	for _, ins := range o.Containers {
		for _, in := range ins {
			if in.ID == id {
				return in
			}
		}
	}
	return nil
}

// Merge takes in the state of a container as the runtime reported it. A report that is older than the known state is dropped,
// so events may come late and twice. It returns the instance and whether its state changed.
func (o *Observed) Merge(n *Instance) (*Instance, bool) {
	in := o.ByID(n.ID)
	if in == nil {
		ins := append(o.Containers[n.Name], n)
		sort.SliceStable(ins, func(i, j int) bool { return startedBefore(ins[i], ins[j]) })
		o.Containers[n.Name] = ins
		return n, true
	}
	if n.State < in.State || n.State == in.State && in.State != StateCreated {
		return in, false
	}
	changed := n.State != in.State
	old := *in
	*in = *n
	in.ByProbe, in.Replaced, in.Obsolete = old.ByProbe, old.Replaced, old.Obsolete
	if in.TerminationMessageFile == "" {
		in.TerminationMessageFile = old.TerminationMessageFile
	}
	return in, changed
}

func startedBefore(a, b *Instance) bool {
	if a.Attempt != b.Attempt {
		return a.Attempt < b.Attempt
	}
	return a.Created.Before(b.Created)
}

// Remove forgets an instance that was removed from the runtime.
func (o *Observed) Remove(id string) {
	for name, ins := range o.Containers {
		for i, in := range ins {
			if in.ID == id {
				o.Containers[name] = append(append([]*Instance{}, ins[:i]...), ins[i+1:]...)
				if len(o.Containers[name]) == 0 {
					delete(o.Containers, name)
				}
				return
			}
		}
	}
}
