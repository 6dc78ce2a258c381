package podworker

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/probe"
	"github.com/balsahq/balsa/node/volume"
)

// Worker runs one pod. Only its goroutine touches the fields below mailbox.
type Worker struct {
	host *Host
	uid  types.UID
	// snapshot is the newest View for readers in other goroutines.
	snapshot atomic.Pointer[View]
	// leaving says that the API has no such pod any more, so its resources count as free.
	leaving atomic.Bool

	// asked is the newest version of the pod from the API; granted is the node's answer to the resources that it asks for. The
	// worker writes the one and the agent the other.
	asked   atomic.Pointer[v1.Pod]
	granted atomic.Pointer[podloop.Grant]

	mailbox mailbox

	pod              *v1.Pod        // the newest version, with the resources that are allocated to it
	grant            *podloop.Grant // that pod has
	observed         *podloop.Observed
	ops              map[podloop.OperationKey]*inFlight
	wg               sync.WaitGroup
	mounts           volume.Mounts
	handler          string            // runtime handler of the RuntimeClass
	cleanups         map[string]func() // by container ID: undoes what was made for this container alone
	announced        map[string]string // by container: the text of the last back-off event, so that each is recorded once
	volumesStale     bool              // labels or annotations changed, so files of volumes made from them have to be written again
	sourcesFound     int               // how often SourceFound was called
	statusWriting    bool
	statusStaleSince time.Time // since when the status in the API is out of date
	statusRetry      *podloop.Retry
	seen             time.Time     // when this process first saw the pod
	pulling          time.Duration // how long its images were pulled
	startNoted       bool          // its start has been counted, or was before this process began
}

// View is an immutable picture of a pod for readers in other goroutines.
type View struct {
	Pod        *v1.Pod // with the status as the worker knows it
	SandboxID  string  // of a ready sandbox, else ""
	Containers map[string]ContainerView
	// Claims are the directories of the pod's PersistentVolumeClaims on this host, by the claim's name; nil when it has none.
	Claims  map[string]string
	Stopped bool
	// Failing says that the pod has failed as a whole, or will when its containers have ended.
	Failing bool
	// TornDown says that the pod has ended and its volumes are removed.
	TornDown bool
}

type ContainerView struct {
	Running bool
	LogPath string
	Name    string
}

// inFlight is an operation that has begun and not ended.
type inFlight struct{ cancel context.CancelFunc }

// mailbox is a queue of functions that the worker's goroutine calls in order. It has no bound: a writer never waits, and a
// pod causes few events.
type mailbox struct {
	mu   sync.Mutex
	todo []func()
	wake chan struct{}
}

func (m *mailbox) post(fn func()) {
	m.mu.Lock()
	m.todo = append(m.todo, fn)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *mailbox) drain(do func(fn func())) {
	m.mu.Lock()
	todo := m.todo
	m.todo = nil
	m.mu.Unlock()
	for _, fn := range todo {
		do(fn)
	}
}

// New returns the worker of a pod. It starts nothing. The pod has the resources that a former process allocated to it, else
// those of its spec.
func New(h *Host, pod *v1.Pod) *Worker {
	w := &Worker{
		host: h, uid: pod.UID, pod: pod, observed: podloop.NewObserved(), ops: map[podloop.OperationKey]*inFlight{},
		cleanups: map[string]func(){}, announced: map[string]string{},
	}
	w.mailbox.wake = make(chan struct{}, 1)
	w.seen, w.startNoted = time.Now(), pod.Status.Phase != "" && pod.Status.Phase != v1.PodPending
	w.grant = &podloop.Grant{Asked: podloop.ResourcesOf(pod), Generation: pod.Generation}
	w.grant.Allocated = w.grant.Asked
	if c, ok := h.readRecord(pod); ok && !c.Allocated.Are(pod) {
		w.grant = &podloop.Grant{Asked: c.Allocated, Allocated: c.Allocated, Generation: c.Generation}
	}
	w.asked.Store(pod)
	w.granted.Store(w.grant)
	w.pod = w.grant.Allocated.On(pod)
	w.observed.StartTime = w.seen
	w.observed.Unallocated, w.observed.Unprepared = h.Allocator.Wants(pod), h.Claims.Wants(pod)
	if t := pod.Status.StartTime; t != nil {
		w.observed.StartTime = t.Time
	}
	w.publish(podloop.Decision{}, pod.Status)
	return w
}

// Run works on the pod until nothing is left of it or ctx ends. When ctx ends, containers go on running, and the next process
// adopts them. Run waits for its operations.
func (w *Worker) Run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	defer w.wg.Wait()
	for {
		w.mailbox.drain(func(fn func()) {
			if err := fault.Do(Unit, fn); err != nil {
				w.notePanic(ctx, err)
			}
		})
		wake, done := w.tryStep(ctx)
		if done || ctx.Err() != nil {
			return
		}
		if wake.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(max(0, time.Until(wake)))
		}
		select {
		case <-ctx.Done():
		case <-w.mailbox.wake:
		case <-timer.C:
		}
	}
}

// step asks podloop what to do, starts the actions and reports the status. It returns when to look again.
func (w *Worker) step(ctx context.Context) (wake time.Time, done bool) {
	for {
		w.observed.Now = time.Now()
		w.takeGrant()
		w.endResize()
		d := podloop.Next(w.pod, w.observed)
		if d.Stopping {
			w.cancelStarting()
		}
		again := false
		for _, a := range d.Actions {
			if a.Verb == podloop.RestartAll {
				w.observed.BeginAnew(w.pod)
				w.saveRecord()
				again = true
				continue
			}
			if a.Verb == podloop.FailPod {
				w.observed.Failed = &podloop.Failure{Reason: a.Reason, Message: a.Message}
				w.event(v1.EventTypeNormal, a.Reason, a.Message)
				again = true
				continue
			}
			w.launch(ctx, a)
		}
		if w.volumesStale && w.observed.Volumes && !d.Stopping && !w.observed.IsBusy(podloop.SetUpVolumes, "") && podloop.RetryDue(w.observed, w.observed.VolumesRetry, &d) {
			w.volumesStale = false
			w.launch(ctx, podloop.Action{Verb: podloop.SetUpVolumes})
		}
		w.announceBackoff(d)
		fresh := w.observed.StatusFresh
		statusWake := w.reportStatus(ctx, d)
		if d.Done {
			w.host.Probes.StopPod(w.uid)
			return time.Time{}, true
		}
		if again || w.observed.StatusFresh && !fresh && d.Stopping {
			continue
		}
		wake = d.Wake
		if !statusWake.IsZero() && (wake.IsZero() || statusWake.Before(wake)) {
			wake = statusWake
		}
		return wake, false
	}
}

// cancelStarting cancels the operations that would bring up a pod that is stopping.
func (w *Worker) cancelStarting() {
	if w.observed.StoppingSince.IsZero() {
		w.observed.StoppingSince = w.observed.Now
		for name := range w.observed.Containers {
			// Readiness probes go on: the pod may serve traffic until its containers have ended.
			w.host.Probes.StopKind(w.uid, name, probe.Liveness, probe.Startup)
		}
	}
	for k, op := range w.ops {
		switch k.Verb {
		case podloop.AllocateResources, podloop.PrepareClaims, podloop.SetUpVolumes, podloop.PullImage, podloop.StartContainer, podloop.CreateSandbox, podloop.ResizePod:
			op.cancel()
		}
	}
}

// launch begins the operation of an action in a goroutine of its own. The operation's result comes back through the mailbox.
func (w *Worker) launch(ctx context.Context, a podloop.Action) {
	k := a.Key()
	if old := w.ops[k]; old != nil {
		old.cancel() // only a stop is begun twice, when its grace period became shorter
	}
	opctx, cancel := context.WithCancel(ctx)
	self := &inFlight{cancel}
	w.ops[k], w.observed.Busy[k] = self, a.Grace
	perform, began := w.operationFor(a), time.Now()
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		defer cancel()
		var apply func()
		if err := fault.Do("node/operation", func() {
			fault.Point("node/operation/" + string(a.Verb))
			apply = perform(opctx)
		}); err != nil {
			apply = func() { w.notePanic(ctx, err) }
		}
		if a.Verb != podloop.KillContainer { // lasts as long as the pod's grace period
			w.host.Counters.Worked(string(a.Verb), time.Since(began))
		}
		w.mailbox.post(func() {
			if w.ops[k] == self {
				delete(w.ops, k)
				delete(w.observed.Busy, k)
			}
			w.observed.Now = time.Now()
			apply()
		})
	}()
}

// setPod takes a version of the pod from the API unless it is older than the known one.
func (w *Worker) setPod(pod *v1.Pod) {
	if !podloop.IsNewer(w.pod, pod) {
		return
	}
	if !maps.Equal(w.pod.Labels, pod.Labels) || !maps.Equal(w.pod.Annotations, pod.Annotations) {
		w.volumesStale = true
	}
	w.asked.Store(pod)
	w.pod = w.grant.Allocated.On(pod)
	if !w.grant.Asked.Are(pod) {
		w.host.ResizeAsked()
	}
}

// setGone notes that the API has no such pod any more.
func (w *Worker) setGone() { w.observed.Gone = true }

// publish makes a new View of the pod for readers.
func (w *Worker) publish(d podloop.Decision, s v1.PodStatus) {
	pod := w.pod
	if !apiequality.Semantic.DeepEqual(pod.Status, s) {
		c := *w.pod
		c.Status = s
		pod = &c
	}
	v := &View{Pod: pod, Containers: map[string]ContainerView{}, Claims: w.claims(), Stopped: d.Stopped, Failing: w.observed.Failed != nil, TornDown: w.observed.TornDown}
	if b := w.observed.Sandbox; b != nil && b.Ready && !b.Stopped {
		v.SandboxID = b.ID
	}
	for _, ins := range w.observed.Containers {
		for _, in := range ins {
			v.Containers[in.ID] = ContainerView{Running: in.State == podloop.StateRunning, LogPath: in.LogPath, Name: in.Name}
		}
	}
	w.noteStart(&s)
	w.snapshot.Store(v)
	w.host.Published(w.uid, v)
}

// claims returns the directories of the pod's claims that are mounted.
func (w *Worker) claims() (out map[string]string) {
	for i := range w.pod.Spec.Volumes {
		v := &w.pod.Spec.Volumes[i]
		name := ""
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = ephemeral.VolumeClaimName(w.pod, v)
		default:
			continue
		}
		if m := w.mounts[v.Name]; m.HostPath != "" && !m.Block {
			if out == nil {
				out = map[string]string{}
			}
			out[name] = m.HostPath
		}
	}
	return out
}

// noteStart counts the start of a pod once it runs.
func (w *Worker) noteStart(s *v1.PodStatus) {
	if w.startNoted || s.Phase != v1.PodRunning {
		return
	}
	w.startNoted = true
	w.host.Counters.PodStarted(w.seen, w.pod.CreationTimestamp.Time, w.pulling)
}

// event records an event about the pod.
func (w *Worker) event(kind, reason, message string) {
	w.host.Events.Event(w.pod, kind, reason, message)
}

// announceBackoff records an event for each restart or pull that is held back, once for each delay.
func (w *Worker) announceBackoff(d podloop.Decision) {
	for name, wait := range d.Waiting {
		if w.announced[name] == wait.Reason+wait.Message {
			continue
		}
		c, kind := podloop.FindContainer(w.pod, name)
		if c == nil || d.Stopping {
			continue
		}
		switch wait.Reason {
		case "CrashLoopBackOff":
			w.containerEvent(name, kind, v1.EventTypeWarning, "BackOff",
				"Back-off restarting failed container "+name+" in pod "+podloop.PodName(w.pod))
		case "ImagePullBackOff":
			w.containerEvent(name, kind, v1.EventTypeNormal, "BackOff", "Back-off pulling image \""+c.Image+"\"")
			w.containerEvent(name, kind, v1.EventTypeWarning, "Failed", "Error: ImagePullBackOff")
		default:
			continue
		}
		w.announced[name] = wait.Reason + wait.Message
	}
}

// NewOrphan returns the worker of a pod that runs here and that the API no longer knows: it ends the pod.
func NewOrphan(h *Host, pod *v1.Pod, o *podloop.Observed) *Worker {
	w := New(h, pod)
	w.Adopt(o)
	w.observed.Gone = true
	return w
}
