package node

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/probe"
	"github.com/balsahq/balsa/node/volume"
)

// worker runs one pod. Its goroutine alone touches everything below mailbox.
type worker struct {
	host *Host
	uid  types.UID
	// snapshot is what readers outside the goroutine see.
	snapshot atomic.Pointer[podView]
	// leaving says that the API has no such pod any more: its room is free.
	leaving atomic.Bool

	mailbox mailbox

	pod      *v1.Pod // newest from the API, with the newest status known to be there
	o        *podloop.Observed
	ops      map[podloop.OperationKey]*op
	wg       sync.WaitGroup
	mounts   volume.Mounts
	handler  string            // runtime handler of the RuntimeClass
	cleanups map[string]func() // by container ID: what was made for it alone
	told     map[string]string // events said once, until their text changes
	stale    bool              // files made from labels and annotations are behind
	writing  bool
	dirty    time.Time // since when the API's status is behind
	writeErr *podloop.Retry
}

// podView is an immutable picture of a pod for readers.
type podView struct {
	Pod        *v1.Pod // with the status as the agent knows it
	SandboxID  string  // of a ready sandbox
	Containers map[string]containerView
	Stopped    bool
}

type containerView struct {
	Running bool
	LogPath string
	Name    string
}

// op is an operation in flight.
type op struct{ cancel context.CancelFunc }

// mailbox hands closures to the worker's goroutine.
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

// New returns the worker of a pod. It starts nothing.
func newWorker(h *Host, pod *v1.Pod) *worker {
	w := &worker{
		host: h, uid: pod.UID, pod: pod, o: podloop.NewObserved(), ops: map[podloop.OperationKey]*op{},
		cleanups: map[string]func(){}, told: map[string]string{},
	}
	w.mailbox.wake = make(chan struct{}, 1)
	w.o.StartTime = time.Now()
	if t := pod.Status.StartTime; t != nil {
		w.o.StartTime = t.Time
	}
	w.publish(podloop.Decision{}, pod.Status)
	return w
}

// Run brings the pod forward until nothing is left of it or ctx ends. When ctx
// ends, containers go on running: the next agent adopts them.
func (w *worker) Run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	defer w.wg.Wait()
	for {
		w.mailbox.drain(func(fn func()) {
			if err := fault.Do(unitPod, fn); err != nil {
				w.panicked(ctx, err)
			}
		})
		wake, done := w.attempt(ctx)
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

// step decides once, starts what was decided and reports.
func (w *worker) step(ctx context.Context) (wake time.Time, done bool) {
	for {
		w.o.Now = time.Now()
		d := podloop.Next(w.pod, w.o)
		if d.Stopping {
			w.stopping()
		}
		again := false
		for _, a := range d.Actions {
			if a.Verb == podloop.FailPod {
				w.o.Failed = &podloop.Failure{Reason: a.Reason, Message: a.Message}
				w.event(v1.EventTypeNormal, a.Reason, a.Message)
				again = true
				continue
			}
			w.launch(ctx, a)
		}
		if w.stale && w.o.Volumes && !d.Stopping && !w.o.IsBusy(podloop.SetUpVolumes, "") && podloop.RetryDue(w.o, w.o.VolumesRetry, &d) {
			w.stale = false
			w.launch(ctx, podloop.Action{Verb: podloop.SetUpVolumes})
		}
		w.tellBackoff(d)
		fresh := w.o.StatusFresh
		statusWake := w.report(ctx, d)
		if d.Done {
			w.host.Probes.StopPod(w.uid)
			return time.Time{}, true
		}
		if again || w.o.StatusFresh && !fresh && d.Stopping {
			continue
		}
		wake = d.Wake
		if !statusWake.IsZero() && (wake.IsZero() || statusWake.Before(wake)) {
			wake = statusWake
		}
		return wake, false
	}
}

// stopping cancels what would only bring the pod up.
func (w *worker) stopping() {
	if w.o.StoppingSince.IsZero() {
		w.o.StoppingSince = w.o.Now
		for name := range w.o.Containers {
			// Readiness goes on: traffic may still be served until the end.
			w.host.Probes.StopKind(w.uid, name, probe.Liveness, probe.Startup)
		}
	}
	for k, op := range w.ops {
		switch k.Verb {
		case podloop.SetUpVolumes, podloop.PullImage, podloop.StartContainer, podloop.CreateSandbox, podloop.ResizeContainer:
			op.cancel()
		}
	}
}

// launch runs one action beside the worker. What it found comes back through
// the mailbox.
func (w *worker) launch(ctx context.Context, a podloop.Action) {
	k := a.Key()
	if old := w.ops[k]; old != nil {
		old.cancel() // a stop with a shorter grace period replaces the one before
	}
	opctx, cancel := context.WithCancel(ctx)
	self := &op{cancel}
	w.ops[k], w.o.Busy[k] = self, a.Grace
	perform := w.perform(a)
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		defer cancel()
		var apply func()
		if err := fault.Do("node/operation", func() {
			fault.Point("node/operation/" + string(a.Verb))
			apply = perform(opctx)
		}); err != nil {
			apply = func() { w.panicked(ctx, err) }
		}
		w.mailbox.post(func() {
			if w.ops[k] == self {
				delete(w.ops, k)
				delete(w.o.Busy, k)
			}
			w.o.Now = time.Now()
			apply()
		})
	}()
}

// setPod takes in a newer version from the API.
func (w *worker) setPod(pod *v1.Pod) {
	if podloop.IsNewer(w.pod, pod) {
		w.resized(w.pod, pod)
		if !maps.Equal(w.pod.Labels, pod.Labels) || !maps.Equal(w.pod.Annotations, pod.Annotations) {
			w.stale = true
		}
		w.pod = pod
	}
}

// resized marks running containers whose resources the API has changed.
func (w *worker) resized(old, pod *v1.Pod) {
	for _, cs := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range cs {
			was, _ := podloop.FindContainer(old, cs[i].Name)
			if was != nil && !apiequality.Semantic.DeepEqual(was.Resources, cs[i].Resources) {
				w.o.Resized[cs[i].Name] = true
			}
		}
	}
}

// gone: the API has no such pod any more.
func (w *worker) gone() { w.o.Gone = true }

// publish shows readers how the pod stands.
func (w *worker) publish(d podloop.Decision, s v1.PodStatus) {
	pod := w.pod
	if !apiequality.Semantic.DeepEqual(pod.Status, s) {
		c := *w.pod
		c.Status = s
		pod = &c
	}
	v := &podView{Pod: pod, Containers: map[string]containerView{}, Stopped: d.Stopped}
	if b := w.o.Sandbox; b != nil && b.Ready && !b.Stopped {
		v.SandboxID = b.ID
	}
	for _, ins := range w.o.Containers {
		for _, in := range ins {
			v.Containers[in.ID] = containerView{Running: in.State == podloop.StateRunning, LogPath: in.LogPath, Name: in.Name}
		}
	}
	w.snapshot.Store(v)
	w.host.Published(w.uid, v)
}

// event records an event about the pod.
func (w *worker) event(kind, reason, message string) {
	w.host.Events.Event(w.pod, kind, reason, message)
}

// tellBackoff says once for each wait that a restart or a pull is held back.
func (w *worker) tellBackoff(d podloop.Decision) {
	for name, wait := range d.Waiting {
		if w.told[name] == wait.Reason+wait.Message {
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
		w.told[name] = wait.Reason + wait.Message
	}
}
