package podloop

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/balsahq/balsa/node/nodetest"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world is a runtime in memory: it carries out what next decides, one
// operation at a time in an order the test picks.
type world struct {
	t      *rapid.T
	pod    *v1.Pod
	o      *Observed
	serial int
	order  []string // init containers in the order in which they ended well
}

func newWorld(t *rapid.T, pod *v1.Pod) *world {
	w := &world{t: t, pod: pod, o: NewObserved()}
	w.o.Now, w.o.StartTime = epoch, epoch
	return w
}

// begin starts what is decided; finish ends one operation in flight.
func (w *world) begin() Decision {
	d := Next(w.pod, w.o)
	if d.Stopping && w.o.StoppingSince.IsZero() {
		w.o.StoppingSince = w.o.Now
	}
	for _, a := range d.Actions {
		if a.Verb == FailPod {
			w.o.Failed = &Failure{a.Reason, a.Message}
			continue
		}
		if _, busy := w.o.Busy[a.Key()]; busy && a.Verb != KillContainer {
			w.t.Fatalf("%s of %q is begun twice", a.Verb, a.Container)
		}
		if d.Stopping && (a.Verb == StartContainer || a.Verb == CreateSandbox || a.Verb == PullImage || a.Verb == SetUpVolumes) {
			w.t.Fatalf("%s of %q after the end was decided", a.Verb, a.Container)
		}
		if a.Verb == StartContainer {
			w.checkStart(a)
		}
		w.o.Busy[a.Key()] = a.Grace
	}
	return d
}

func (w *world) checkStart(a Action) {
	for _, in := range w.o.Containers[a.Container] {
		if in.State == StateRunning {
			w.t.Fatalf("%s is started while one runs", a.Container)
		}
	}
	if w.o.Sandbox == nil || !w.o.Sandbox.Ready || !w.o.Volumes {
		w.t.Fatalf("%s is started without sandbox or volumes", a.Container)
	}
	if w.o.Images[a.Container].Ref == "" {
		w.t.Fatalf("%s is started without its image", a.Container)
	}
	if last := w.o.Latest(a.Container); last != nil && a.Attempt <= last.Attempt && last.State != StateCreated {
		w.t.Fatalf("%s: attempt %d after %d", a.Container, a.Attempt, last.Attempt)
	}
	_, kind := FindContainer(w.pod, a.Container)
	for i := range w.pod.Spec.InitContainers {
		c := &w.pod.Spec.InitContainers[i]
		if kind == KindInit && c.Name == a.Container {
			return
		}
		in := w.o.Latest(c.Name)
		if c.RestartPolicy == nil && (in == nil || in.State != StateExited || in.ExitCode != 0) {
			w.t.Fatalf("%s is started before init container %s has ended well", a.Container, c.Name)
		}
		if c.RestartPolicy != nil && in == nil {
			w.t.Fatalf("%s is started before sidecar %s", a.Container, c.Name)
		}
	}
}

func (w *world) finish(k OperationKey, fail bool) {
	delete(w.o.Busy, k)
	bad := (*Retry)(nil).Again(w.o.Now, Failure{"Err", "err"}, time.Second, time.Minute)
	switch k.Verb {
	case SetUpVolumes:
		if fail {
			w.o.VolumesRetry = bad
			return
		}
		w.o.Volumes = true
	case CreateSandbox:
		if fail {
			w.o.SandboxRetry = bad
			return
		}
		w.serial++
		w.o.Sandbox = &Sandbox{ID: fmt.Sprint("s", w.serial), Ready: true}
	case PullImage:
		if fail {
			w.o.Images[k.Container] = Image{Retry: bad}
			return
		}
		w.o.Images[k.Container] = Image{Ref: "ref"}
	case StartContainer:
		if fail {
			w.o.StartRetry[k.Container] = bad
			return
		}
		w.serial++
		attempt := 0
		if in := w.o.Latest(k.Container); in != nil {
			attempt = in.Attempt + 1
			w.o.Backoff[k.Container] = w.o.Backoff[k.Container].Next(w.o.Now, in.Finished)
		}
		w.o.Merge(&Instance{ID: fmt.Sprint("c", w.serial), SandboxID: w.o.Sandbox.ID, Name: k.Container, State: StateRunning,
			Attempt: attempt, Created: w.o.Now, Started: w.o.Now})
		delete(w.o.Images, k.Container)
		delete(w.o.StartRetry, k.Container)
	case KillContainer:
		w.exit(k.Container, 143)
	case StopSandbox:
		w.o.Sandbox.Ready, w.o.Sandbox.Stopped = false, true
	case TearDown:
		w.o.TornDown = true
	case DeletePod:
		w.o.Gone = true
	case PurgePod:
		w.o.Purged = true
	case PruneContainers:
	}
}

func (w *world) exit(name string, code int32) {
	if in := w.o.Latest(name); in != nil && in.State == StateRunning {
		in.State, in.ExitCode, in.Finished = StateExited, code, w.o.Now
	}
}

func (w *world) keys() []OperationKey {
	var ks []OperationKey
	for _, v := range []Verb{SetUpVolumes, CreateSandbox, PullImage, StartContainer, KillContainer, StopSandbox, TearDown, DeletePod, PurgePod, PruneContainers} {
		for _, n := range append([]string{""}, w.containers()...) {
			if _, ok := w.o.Busy[OperationKey{v, n}]; ok {
				ks = append(ks, OperationKey{v, n})
			}
		}
	}
	return ks
}

func (w *world) containers() []string {
	var ns []string
	for _, cs := range [][]v1.Container{w.pod.Spec.InitContainers, w.pod.Spec.Containers} {
		for _, c := range cs {
			ns = append(ns, c.Name)
		}
	}
	return ns
}

// settle lets everything end well until nothing is left to do now.
func (w *world) settle() Decision {
	for range 1000 {
		d := w.begin()
		ks := w.keys()
		if len(ks) == 0 {
			return d
		}
		w.finish(ks[0], false)
		w.o.StatusFresh = true
	}
	w.t.Fatal("no end")
	return Decision{}
}

// TestNextUnderAnyCourse: whatever fails, exits and dies in whichever order,
// the rules of checkStart hold and a deleted pod comes to its end.
func TestNextUnderAnyCourse(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		policy := rapid.SampledFrom([]v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}).Draw(rt, "policy")
		pod := nodetest.Pod(policy, rapid.IntRange(0, 3).Draw(rt, "inits"), rapid.IntRange(1, 3).Draw(rt, "mains"))
		always := v1.ContainerRestartPolicyAlways
		for i := range pod.Spec.InitContainers {
			if rapid.Bool().Draw(rt, "sidecar") {
				pod.Spec.InitContainers[i].RestartPolicy = &always
			}
		}
		w := newWorld(rt, pod)
		for range rapid.IntRange(0, 60).Draw(rt, "steps") {
			w.begin()
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0, 1, 2:
				if ks := w.keys(); len(ks) > 0 {
					k := rapid.SampledFrom(ks).Draw(rt, "op")
					w.finish(k, rapid.IntRange(0, 4).Draw(rt, "fail") == 0)
				}
			case 3:
				w.exit(rapid.SampledFrom(w.containers()).Draw(rt, "exit"), int32(rapid.IntRange(0, 1).Draw(rt, "code")))
			case 4:
				w.o.Now = w.o.Now.Add(time.Duration(rapid.IntRange(0, 40).Draw(rt, "seconds")) * time.Second)
			case 5:
				if w.o.Sandbox != nil && rapid.IntRange(0, 9).Draw(rt, "dies") == 0 {
					w.o.Sandbox.Ready = false
					for _, n := range w.containers() {
						w.exit(n, 137)
					}
				}
			}
		}
		now := metav1.NewTime(w.o.Now)
		w.pod = w.pod.DeepCopy()
		w.pod.DeletionTimestamp = &now
		w.o.StatusFresh = true
		w.o.Now = w.o.Now.Add(time.Hour)
		if d := w.settle(); !d.Done {
			rt.Fatalf("not done: %+v, busy %v", d, w.o.Busy)
		}
		for n, ins := range w.o.Containers {
			for _, in := range ins {
				if in.State == StateRunning {
					rt.Fatalf("%s still runs", n)
				}
			}
		}
	})
}

func TestCrashBackoffDoublesAndResets(t *testing.T) {
	b := Backoff{}
	now := epoch
	for i, want := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		b = b.Next(now, now)
		if b.Delay != want*time.Second {
			t.Errorf("restart %d: delay %v, want %v", i, b.Delay, want*time.Second)
		}
		now = now.Add(b.Delay)
	}
	if b = b.Next(now.Add(time.Hour), now.Add(time.Hour)); b.Delay != crashDelay {
		t.Errorf("after a long run: delay %v", b.Delay)
	}
}

func TestRestartWaitsFromTheEndOfTheRun(t *testing.T) {
	o := NewObserved()
	end := epoch.Add(time.Minute)
	in := &Instance{ID: "a", Name: "c", State: StateExited, Finished: end}
	o.Merge(in)
	if at := restartAt(o, "c", in); !at.IsZero() {
		t.Errorf("first restart waits until %v", at)
	}
	o.Backoff["c"] = Backoff{Delay: 20 * time.Second, Last: epoch}
	if at := restartAt(o, "c", in); !at.Equal(end.Add(20 * time.Second)) {
		t.Errorf("restart at %v", at)
	}
	o.Merge(&Instance{ID: "b", Name: "c", State: StateExited, Attempt: 1, ByProbe: true, Finished: end.Add(time.Minute)})
	if at := restartAt(o, "c", o.Latest("c")); !at.Equal(end.Add(20 * time.Second)) {
		t.Errorf("killed by a probe: restart at %v", at)
	}
}

func TestOldNewsIsDropped(t *testing.T) {
	o := NewObserved()
	o.Merge(&Instance{ID: "a", Name: "c", State: StateExited, ExitCode: 7})
	in, changed := o.Merge(&Instance{ID: "a", Name: "c", State: StateRunning})
	if changed || in.State != StateExited || in.ExitCode != 7 {
		t.Errorf("merged to %+v", in)
	}
}

func has(d Decision, v Verb, container string) bool {
	for _, a := range d.Actions {
		if a.Verb == v && a.Container == container {
			return true
		}
	}
	return false
}

func TestNextCases(t *testing.T) {
	deleted := func(p *v1.Pod) { now := metav1.NewTime(epoch); p.DeletionTimestamp = &now }
	ready := func(o *Observed) {
		o.Volumes, o.Sandbox = true, &Sandbox{ID: "s", Ready: true}
	}
	runs := func(o *Observed, name string) {
		o.Merge(&Instance{ID: name + "-id", SandboxID: "s", Name: name, State: StateRunning})
	}
	for _, c := range []struct {
		name  string
		pod   *v1.Pod
		edit  func(*v1.Pod)
		given func(*Observed)
		want  func(Decision) bool
	}{
		{"a new pod gets volumes, sandbox and image at once", nodetest.Pod(v1.RestartPolicyAlways, 0, 1), nil, nil,
			func(d Decision) bool {
				return has(d, SetUpVolumes, "") && has(d, CreateSandbox, "") && has(d, PullImage, "c0")
			}},
		{"a pod with a Secret waits for it before its sandbox", nodetest.Pod(v1.RestartPolicyAlways, 0, 1), func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "s", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "x"}}}}
		}, nil, func(d Decision) bool { return has(d, SetUpVolumes, "") && !has(d, CreateSandbox, "") }},
		{"a liveness failure kills", nodetest.Pod(v1.RestartPolicyAlways, 0, 1), nil, func(o *Observed) {
			ready(o)
			runs(o, "c0")
			o.Unhealthy["c0-id"] = &Unhealthy{Kind: "liveness", Grace: 3}
		}, func(d Decision) bool {
			return has(d, KillContainer, "c0") && d.Actions[0].Grace == 3 &&
				d.Actions[0].Message == "Container c0 failed liveness probe, will be restarted"
		}},
		{"deletion kills with the grace period", nodetest.Pod(v1.RestartPolicyAlways, 0, 1), deleted, func(o *Observed) { ready(o); runs(o, "c0") },
			func(d Decision) bool { return has(d, KillContainer, "c0") && d.Actions[0].Grace == 5 }},
		{"a shorter grace period kills again", nodetest.Pod(v1.RestartPolicyAlways, 0, 1), func(p *v1.Pod) {
			deleted(p)
			g := int64(1)
			p.DeletionGracePeriodSeconds = &g
		}, func(o *Observed) { ready(o); runs(o, "c0"); o.Busy[OperationKey{KillContainer, "c0"}] = 5 },
			func(d Decision) bool { return has(d, KillContainer, "c0") && d.Actions[0].Grace == 1 }},
		{"a sidecar outlives the containers", nodetest.Pod(v1.RestartPolicyNever, 1, 1), func(p *v1.Pod) {
			a := v1.ContainerRestartPolicyAlways
			p.Spec.InitContainers[0].RestartPolicy = &a
			deleted(p)
		}, func(o *Observed) { ready(o); runs(o, "i0"); runs(o, "c0") },
			func(d Decision) bool { return has(d, KillContainer, "c0") && !has(d, KillContainer, "i0") }},
		{"a changed image restarts the container", nodetest.Pod(v1.RestartPolicyAlways, 0, 1), nil, func(o *Observed) {
			ready(o)
			o.Merge(&Instance{ID: "x", SandboxID: "s", Name: "c0", State: StateRunning, Hash: "other"})
		}, func(d Decision) bool { return has(d, KillContainer, "c0") }},
		{"a failed init container ends a pod that never restarts", nodetest.Pod(v1.RestartPolicyNever, 1, 1), nil, func(o *Observed) {
			ready(o)
			o.Merge(&Instance{ID: "x", SandboxID: "s", Name: "i0", State: StateExited, ExitCode: 1})
		}, func(d Decision) bool { return d.Stopping && d.Stopped && has(d, StopSandbox, "") }},
		{"the deadline ends the pod", nodetest.Pod(v1.RestartPolicyAlways, 0, 1), func(p *v1.Pod) { s := int64(1); p.Spec.ActiveDeadlineSeconds = &s },
			func(o *Observed) { o.StartTime = epoch.Add(-2 * time.Second) }, func(d Decision) bool { return has(d, FailPod, "") && d.Stopping }},
		{"a back-off is waited for and told", nodetest.Pod(v1.RestartPolicyAlways, 0, 1), nil, func(o *Observed) {
			ready(o)
			o.Merge(&Instance{ID: "x", SandboxID: "s", Name: "c0", State: StateExited, Finished: epoch})
			o.Backoff["c0"] = Backoff{Delay: 10 * time.Second, Last: epoch}
		}, func(d Decision) bool {
			return d.Wake.Equal(epoch.Add(10*time.Second)) && d.Waiting["c0"].Reason == "CrashLoopBackOff" &&
				d.Waiting["c0"].Message == "back-off 10s restarting failed container=c0 pod=p_ns(u)"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := NewObserved()
			o.Now, o.StartTime = epoch, epoch
			if c.edit != nil {
				c.edit(c.pod)
			}
			if c.given != nil {
				c.given(o)
			}
			if d := Next(c.pod, o); !c.want(d) {
				t.Errorf("decided %+v", d)
			}
		})
	}
}

func TestContainersRestartByTheirRules(t *testing.T) {
	pod := nodetest.Pod(v1.RestartPolicyNever, 0, 1)
	c := &pod.Spec.Containers[0]
	c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyNever)
	c.RestartPolicyRules = []v1.ContainerRestartRule{{
		Action:    v1.ContainerRestartRuleActionRestart,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}
	for code, want := range map[int32]bool{42: true, 1: false, 0: false} {
		if got := restartsAfter(pod, c, code); got != want {
			t.Errorf("exit code %d: restarts %v, want %v", code, got, want)
		}
	}
}
