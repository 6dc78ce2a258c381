package node

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func testPod(policy v1.RestartPolicy, inits, mains int) *v1.Pod {
	grace := int64(5)
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"},
		Spec: v1.PodSpec{RestartPolicy: policy, TerminationGracePeriodSeconds: &grace}}
	for i := range inits {
		p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: fmt.Sprintf("i%d", i), Image: "im"})
	}
	for i := range mains {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: fmt.Sprintf("c%d", i), Image: "im"})
	}
	return p
}

// world is a runtime in memory: it carries out what next decides, one
// operation at a time in an order the test picks.
type world struct {
	t      *rapid.T
	pod    *v1.Pod
	o      *observed
	serial int
	order  []string // init containers in the order in which they ended well
}

func newWorld(t *rapid.T, pod *v1.Pod) *world {
	w := &world{t: t, pod: pod, o: newObserved()}
	w.o.Now, w.o.StartTime = epoch, epoch
	return w
}

// begin starts what is decided; finish ends one operation in flight.
func (w *world) begin() decision {
	d := next(w.pod, w.o)
	if d.Stopping && w.o.StoppingSince.IsZero() {
		w.o.StoppingSince = w.o.Now
	}
	for _, a := range d.Actions {
		if a.Verb == doFail {
			w.o.Failed = &failure{a.Reason, a.Message}
			continue
		}
		if _, busy := w.o.Busy[a.key()]; busy && a.Verb != doKill {
			w.t.Fatalf("%s of %q is begun twice", a.Verb, a.Container)
		}
		if d.Stopping && (a.Verb == doStart || a.Verb == doSandbox || a.Verb == doImage || a.Verb == doVolumes) {
			w.t.Fatalf("%s of %q after the end was decided", a.Verb, a.Container)
		}
		if a.Verb == doStart {
			w.checkStart(a)
		}
		w.o.Busy[a.key()] = a.Grace
	}
	return d
}

func (w *world) checkStart(a action) {
	for _, in := range w.o.Containers[a.Container] {
		if in.State == stateRunning {
			w.t.Fatalf("%s is started while one runs", a.Container)
		}
	}
	if w.o.Sandbox == nil || !w.o.Sandbox.Ready || !w.o.Volumes {
		w.t.Fatalf("%s is started without sandbox or volumes", a.Container)
	}
	if w.o.Images[a.Container].Ref == "" {
		w.t.Fatalf("%s is started without its image", a.Container)
	}
	if last := w.o.latest(a.Container); last != nil && a.Attempt <= last.Attempt && last.State != stateCreated {
		w.t.Fatalf("%s: attempt %d after %d", a.Container, a.Attempt, last.Attempt)
	}
	_, kind := containerByName(w.pod, a.Container)
	for i := range w.pod.Spec.InitContainers {
		c := &w.pod.Spec.InitContainers[i]
		if kind == kindInit && c.Name == a.Container {
			return
		}
		in := w.o.latest(c.Name)
		if c.RestartPolicy == nil && (in == nil || in.State != stateExited || in.ExitCode != 0) {
			w.t.Fatalf("%s is started before init container %s has ended well", a.Container, c.Name)
		}
		if c.RestartPolicy != nil && in == nil {
			w.t.Fatalf("%s is started before sidecar %s", a.Container, c.Name)
		}
	}
}

func (w *world) finish(k opKey, fail bool) {
	delete(w.o.Busy, k)
	bad := (*retry)(nil).again(w.o.Now, failure{"Err", "err"}, time.Second, time.Minute)
	switch k.Verb {
	case doVolumes:
		if fail {
			w.o.VolumesRetry = bad
			return
		}
		w.o.Volumes = true
	case doSandbox:
		if fail {
			w.o.SandboxRetry = bad
			return
		}
		w.serial++
		w.o.Sandbox = &sandbox{ID: fmt.Sprint("s", w.serial), Ready: true}
	case doImage:
		if fail {
			w.o.Images[k.Container] = image{Retry: bad}
			return
		}
		w.o.Images[k.Container] = image{Ref: "ref"}
	case doStart:
		if fail {
			w.o.StartRetry[k.Container] = bad
			return
		}
		w.serial++
		attempt := 0
		if in := w.o.latest(k.Container); in != nil {
			attempt = in.Attempt + 1
			w.o.Backoff[k.Container] = w.o.Backoff[k.Container].next(w.o.Now, in.Finished)
		}
		w.o.merge(&instance{ID: fmt.Sprint("c", w.serial), SandboxID: w.o.Sandbox.ID, Name: k.Container, State: stateRunning,
			Attempt: attempt, Created: w.o.Now, Started: w.o.Now})
		delete(w.o.Images, k.Container)
		delete(w.o.StartRetry, k.Container)
	case doKill:
		w.exit(k.Container, 143)
	case doStopSandbox:
		w.o.Sandbox.Ready, w.o.Sandbox.Stopped = false, true
	case doTearDown:
		w.o.TornDown = true
	case doDelete:
		w.o.Gone = true
	case doPurge:
		w.o.Purged = true
	case doPrune:
	}
}

func (w *world) exit(name string, code int32) {
	if in := w.o.latest(name); in != nil && in.State == stateRunning {
		in.State, in.ExitCode, in.Finished = stateExited, code, w.o.Now
	}
}

func (w *world) keys() []opKey {
	var ks []opKey
	for _, v := range []verb{doVolumes, doSandbox, doImage, doStart, doKill, doStopSandbox, doTearDown, doDelete, doPurge, doPrune} {
		for _, n := range append([]string{""}, w.containers()...) {
			if _, ok := w.o.Busy[opKey{v, n}]; ok {
				ks = append(ks, opKey{v, n})
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
func (w *world) settle() decision {
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
	return decision{}
}

// TestNextUnderAnyCourse: whatever fails, exits and dies in whichever order,
// the rules of checkStart hold and a deleted pod comes to its end.
func TestNextUnderAnyCourse(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		policy := rapid.SampledFrom([]v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}).Draw(rt, "policy")
		pod := testPod(policy, rapid.IntRange(0, 3).Draw(rt, "inits"), rapid.IntRange(1, 3).Draw(rt, "mains"))
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
				if in.State == stateRunning {
					rt.Fatalf("%s still runs", n)
				}
			}
		}
	})
}

func TestCrashBackoffDoublesAndResets(t *testing.T) {
	b := backoff{}
	now := epoch
	for i, want := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		b = b.next(now, now)
		if b.Delay != want*time.Second {
			t.Errorf("restart %d: delay %v, want %v", i, b.Delay, want*time.Second)
		}
		now = now.Add(b.Delay)
	}
	if b = b.next(now.Add(time.Hour), now.Add(time.Hour)); b.Delay != crashDelay {
		t.Errorf("after a long run: delay %v", b.Delay)
	}
}

func TestRestartWaitsFromTheEndOfTheRun(t *testing.T) {
	o := newObserved()
	end := epoch.Add(time.Minute)
	in := &instance{ID: "a", Name: "c", State: stateExited, Finished: end}
	o.merge(in)
	if at := restartAt(o, "c", in); !at.IsZero() {
		t.Errorf("first restart waits until %v", at)
	}
	o.Backoff["c"] = backoff{Delay: 20 * time.Second, Last: epoch}
	if at := restartAt(o, "c", in); !at.Equal(end.Add(20 * time.Second)) {
		t.Errorf("restart at %v", at)
	}
	o.merge(&instance{ID: "b", Name: "c", State: stateExited, Attempt: 1, ByProbe: true, Finished: end.Add(time.Minute)})
	if at := restartAt(o, "c", o.latest("c")); !at.Equal(end.Add(20 * time.Second)) {
		t.Errorf("killed by a probe: restart at %v", at)
	}
}

func TestOldNewsIsDropped(t *testing.T) {
	o := newObserved()
	o.merge(&instance{ID: "a", Name: "c", State: stateExited, ExitCode: 7})
	in, changed := o.merge(&instance{ID: "a", Name: "c", State: stateRunning})
	if changed || in.State != stateExited || in.ExitCode != 7 {
		t.Errorf("merged to %+v", in)
	}
}

func has(d decision, v verb, container string) bool {
	for _, a := range d.Actions {
		if a.Verb == v && a.Container == container {
			return true
		}
	}
	return false
}

func TestNextCases(t *testing.T) {
	deleted := func(p *v1.Pod) { now := metav1.NewTime(epoch); p.DeletionTimestamp = &now }
	ready := func(o *observed) {
		o.Volumes, o.Sandbox = true, &sandbox{ID: "s", Ready: true}
	}
	runs := func(o *observed, name string) {
		o.merge(&instance{ID: name + "-id", SandboxID: "s", Name: name, State: stateRunning})
	}
	for _, c := range []struct {
		name  string
		pod   *v1.Pod
		edit  func(*v1.Pod)
		given func(*observed)
		want  func(decision) bool
	}{
		{"a new pod gets volumes, sandbox and image at once", testPod(v1.RestartPolicyAlways, 0, 1), nil, nil,
			func(d decision) bool { return has(d, doVolumes, "") && has(d, doSandbox, "") && has(d, doImage, "c0") }},
		{"a pod with a Secret waits for it before its sandbox", testPod(v1.RestartPolicyAlways, 0, 1), func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "s", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "x"}}}}
		}, nil, func(d decision) bool { return has(d, doVolumes, "") && !has(d, doSandbox, "") }},
		{"a liveness failure kills", testPod(v1.RestartPolicyAlways, 0, 1), nil, func(o *observed) {
			ready(o)
			runs(o, "c0")
			o.Unhealthy["c0-id"] = &unhealthy{Kind: "liveness", Grace: 3}
		}, func(d decision) bool {
			return has(d, doKill, "c0") && d.Actions[0].Grace == 3 &&
				d.Actions[0].Message == "Container c0 failed liveness probe, will be restarted"
		}},
		{"deletion kills with the grace period", testPod(v1.RestartPolicyAlways, 0, 1), deleted, func(o *observed) { ready(o); runs(o, "c0") },
			func(d decision) bool { return has(d, doKill, "c0") && d.Actions[0].Grace == 5 }},
		{"a shorter grace period kills again", testPod(v1.RestartPolicyAlways, 0, 1), func(p *v1.Pod) {
			deleted(p)
			g := int64(1)
			p.DeletionGracePeriodSeconds = &g
		}, func(o *observed) { ready(o); runs(o, "c0"); o.Busy[opKey{doKill, "c0"}] = 5 },
			func(d decision) bool { return has(d, doKill, "c0") && d.Actions[0].Grace == 1 }},
		{"a sidecar outlives the containers", testPod(v1.RestartPolicyNever, 1, 1), func(p *v1.Pod) {
			a := v1.ContainerRestartPolicyAlways
			p.Spec.InitContainers[0].RestartPolicy = &a
			deleted(p)
		}, func(o *observed) { ready(o); runs(o, "i0"); runs(o, "c0") },
			func(d decision) bool { return has(d, doKill, "c0") && !has(d, doKill, "i0") }},
		{"a changed image restarts the container", testPod(v1.RestartPolicyAlways, 0, 1), nil, func(o *observed) {
			ready(o)
			o.merge(&instance{ID: "x", SandboxID: "s", Name: "c0", State: stateRunning, Hash: "other"})
		}, func(d decision) bool { return has(d, doKill, "c0") }},
		{"a failed init container ends a pod that never restarts", testPod(v1.RestartPolicyNever, 1, 1), nil, func(o *observed) {
			ready(o)
			o.merge(&instance{ID: "x", SandboxID: "s", Name: "i0", State: stateExited, ExitCode: 1})
		}, func(d decision) bool { return d.Stopping && d.Stopped && has(d, doStopSandbox, "") }},
		{"the deadline ends the pod", testPod(v1.RestartPolicyAlways, 0, 1), func(p *v1.Pod) { s := int64(1); p.Spec.ActiveDeadlineSeconds = &s },
			func(o *observed) { o.StartTime = epoch.Add(-2 * time.Second) }, func(d decision) bool { return has(d, doFail, "") && d.Stopping }},
		{"a back-off is waited for and told", testPod(v1.RestartPolicyAlways, 0, 1), nil, func(o *observed) {
			ready(o)
			o.merge(&instance{ID: "x", SandboxID: "s", Name: "c0", State: stateExited, Finished: epoch})
			o.Backoff["c0"] = backoff{Delay: 10 * time.Second, Last: epoch}
		}, func(d decision) bool {
			return d.Wake.Equal(epoch.Add(10*time.Second)) && d.Waiting["c0"].Reason == "CrashLoopBackOff" &&
				d.Waiting["c0"].Message == "back-off 10s restarting failed container=c0 pod=p_ns(u)"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newObserved()
			o.Now, o.StartTime = epoch, epoch
			if c.edit != nil {
				c.edit(c.pod)
			}
			if c.given != nil {
				c.given(o)
			}
			if d := next(c.pod, o); !c.want(d) {
				t.Errorf("decided %+v", d)
			}
		})
	}
}
