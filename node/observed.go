package node

import (
	"sort"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// instanceState is how far one container got; it only moves forward.
type instanceState uint8

const (
	stateCreated instanceState = iota
	stateRunning
	stateExited
)

// instance is one container in the runtime: one run of a container of the spec.
type instance struct {
	ID, SandboxID, Name   string
	State                 instanceState
	Attempt               int // restart count
	Created               time.Time
	Started, Finished     time.Time
	ExitCode              int32
	Reason, Message       string
	Image, ImageID        string
	Hash                  string
	LogPath               string
	TerminationMessage    bool // Message is complete
	ByProbe               bool // we killed it because a probe failed
	User                  *v1.ContainerUser
	Resources             *runtimeapi.ContainerResources
	terminationMessageLog string // host path of the termination message
}

// sandbox is the pod's newest sandbox in the runtime.
type sandbox struct {
	ID      string
	Handler string // runtime handler, "" for the default
	Attempt uint32
	Ready   bool
	Stopped bool // StopPodSandbox has succeeded
	IPs     []string
	Created time.Time
}

// retry remembers a failure until it may be tried again.
type retry struct {
	Reason, Message string
	At, NotBefore   time.Time
	Delay           time.Duration
}

// image is what is known of a container's image for its next start.
type image struct {
	Ref     string            // what to give CreateContainer; empty: not ensured
	Volumes map[string]string // the same for the images it mounts, by volume
	Retry   *retry
}

// failure ends a pod as a whole (admission, deadline, eviction).
type failure struct{ Reason, Message string }

// unhealthy asks for a container to be killed.
type unhealthy struct {
	Kind  string // "liveness", "startup"
	Grace int64
}

// observed is everything next looks at besides the spec. Only the pod's worker
// writes it.
type observed struct {
	Now           time.Time
	StartTime     time.Time
	StoppingSince time.Time
	Gone          bool     // the API has no such pod
	Failed        *failure // the pod failed as a whole
	AtOnce        bool     // it failed by what it does to the node: containers get no grace
	Volumes       bool     // volumes, directories and cgroup are there
	TornDown      bool     // and were removed
	Trouble       *retry   // handling the pod has panicked, and not gone well since
	Purged        bool     // nothing is left in the runtime
	StatusFresh   bool     // the API has the status that follows from all this
	Sandbox       *sandbox
	Containers    map[string][]*instance // by name, oldest first
	Images        map[string]image       // by container name
	Backoff       map[string]backoff     // by container name
	Unhealthy     map[string]*unhealthy  // by container ID
	StartedUp     map[string]bool        // by container ID: the startup probe has passed
	Ready         map[string]bool        // by container ID: the readiness probe passes
	Resized       map[string]bool        // by container name: the spec's resources are not the running ones
	Busy          map[opKey]int64        // operations in flight; of doKill the grace period

	// Failures by operation, and by container name where there is one for each. An operation that failed is begun again
	// when its retry is due, and not before.
	VolumesRetry, SandboxRetry, TearDownRetry, DeleteRetry, PurgeRetry, PruneRetry *retry
	StartRetry, KillRetry, ResizeRetry                                             map[string]*retry
}

func newObserved() *observed {
	return &observed{
		Containers: map[string][]*instance{}, Images: map[string]image{}, Backoff: map[string]backoff{},
		Unhealthy: map[string]*unhealthy{}, StartedUp: map[string]bool{}, Ready: map[string]bool{},
		Resized: map[string]bool{}, Busy: map[opKey]int64{},
		StartRetry: map[string]*retry{}, KillRetry: map[string]*retry{}, ResizeRetry: map[string]*retry{},
	}
}

func (o *observed) busy(v verb, container string) bool {
	_, ok := o.Busy[opKey{v, container}]
	return ok
}

func (o *observed) anyBusy(v verb) bool {
	for k := range o.Busy {
		if k.Verb == v {
			return true
		}
	}
	return false
}

// killing returns the grace period of the stop in flight.
func (o *observed) killing(container string) (int64, bool) {
	g, ok := o.Busy[opKey{doKill, container}]
	return g, ok
}

// latest is the newest instance of a container, nil when there is none.
func (o *observed) latest(name string) *instance {
	ins := o.Containers[name]
	if len(ins) == 0 {
		return nil
	}
	return ins[len(ins)-1]
}

// previous is the instance before the newest one.
func (o *observed) previous(name string) *instance {
	ins := o.Containers[name]
	if len(ins) < 2 {
		return nil
	}
	return ins[len(ins)-2]
}

// here reports whether an instance belongs to the present sandbox.
func (o *observed) here(in *instance) bool { return o.Sandbox != nil && in.SandboxID == o.Sandbox.ID }

// startedUp reports whether the container runs and has passed its startup
// probe and its postStart hook.
func (o *observed) startedUp(c *v1.Container) bool {
	in := o.latest(c.Name)
	if in == nil || in.State != stateRunning || o.busy(doStart, c.Name) {
		return false
	}
	return c.StartupProbe == nil || o.StartedUp[in.ID]
}

func (o *observed) names() []string {
	names := make([]string, 0, len(o.Containers))
	for n := range o.Containers {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// byID finds an instance.
func (o *observed) byID(id string) *instance {
	for _, ins := range o.Containers {
		for _, in := range ins {
			if in.ID == id {
				return in
			}
		}
	}
	return nil
}

// merge takes in what the runtime said of a container. News of one that is
// already further along is old and is dropped, so events may come late and
// twice. It returns the instance and whether anything changed.
func (o *observed) merge(n *instance) (*instance, bool) {
	in := o.byID(n.ID)
	if in == nil {
		ins := append(o.Containers[n.Name], n)
		sort.SliceStable(ins, func(i, j int) bool { return older(ins[i], ins[j]) })
		o.Containers[n.Name] = ins
		return n, true
	}
	if n.State < in.State || n.State == in.State && in.State != stateCreated {
		if n.State == in.State {
			in.Resources = n.Resources
		}
		return in, false
	}
	changed := n.State != in.State
	probe, message := in.ByProbe, in.terminationMessageLog
	*in = *n
	in.ByProbe = probe
	if in.terminationMessageLog == "" {
		in.terminationMessageLog = message
	}
	return in, changed
}

func older(a, b *instance) bool {
	if a.Attempt != b.Attempt {
		return a.Attempt < b.Attempt
	}
	return a.Created.Before(b.Created)
}

// forget drops an instance that was removed from the runtime.
func (o *observed) forget(id string) {
	for name, ins := range o.Containers {
		for i, in := range ins {
			if in.ID == id {
				o.Containers[name] = append(append([]*instance{}, ins[:i]...), ins[i+1:]...)
				if len(o.Containers[name]) == 0 {
					delete(o.Containers, name)
				}
				return
			}
		}
	}
}

// backoff is the crash back-off of one container.
type backoff struct {
	Delay time.Duration // before the next restart; 0: never restarted
	Last  time.Time     // when it was restarted last
}

const (
	crashDelay    = 10 * time.Second
	maxCrashDelay = 5 * time.Minute
	crashReset    = 2 * maxCrashDelay
)

// restartAt is when a container that exited may start again. The wait counts
// from its end; of one that a probe made us kill, from the end of the run
// before, since killing it took its time already.
func restartAt(o *observed, name string, in *instance) time.Time {
	b := o.Backoff[name]
	from := in.Finished
	if in.ByProbe {
		p := o.previous(name)
		if p == nil {
			return time.Time{}
		}
		from = p.Finished
	}
	if b.Delay == 0 || from.Sub(b.Last) > crashReset {
		return time.Time{}
	}
	return from.Add(b.Delay)
}

// next is the back-off after a restart now.
func (b backoff) next(now, finished time.Time) backoff {
	switch {
	case b.Delay == 0 || finished.Sub(b.Last) > crashReset:
		return backoff{crashDelay, now}
	default:
		return backoff{min(2*b.Delay, maxCrashDelay), now}
	}
}

// backoffOf is the back-off of a container of which only the newest run is
// known, as if each of its restarts had been a crash.
func backoffOf(in *instance) backoff {
	if in.Attempt == 0 {
		return backoff{}
	}
	return backoff{Delay: min(crashDelay<<min(in.Attempt-1, 5), maxCrashDelay), Last: in.Started}
}

// after is the retry that follows r once the operation was done again: nil when it succeeded.
func (r *retry) after(now time.Time, reason string, err error) *retry {
	if err == nil {
		return nil
	}
	return r.again(now, failure{reason, err.Error()}, firstRetry, mostRetry)
}

// again is the retry that follows r after one more failure, doubling from
// first to most.
func (r *retry) again(now time.Time, f failure, first, most time.Duration) *retry {
	d := first
	if r != nil {
		d = min(2*r.Delay, most)
	}
	return &retry{Reason: f.Reason, Message: f.Message, At: now, NotBefore: now.Add(d), Delay: d}
}
