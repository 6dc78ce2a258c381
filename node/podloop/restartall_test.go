package podloop

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// restartablePod has an init container, a sidecar and two containers; the exit of the first with 42 restarts all.
func restartablePod() *v1.Pod {
	always, never := v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyNever
	return &v1.Pod{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyNever,
		InitContainers: []v1.Container{{Name: "i", Image: "im"}, {Name: "s", Image: "im", RestartPolicy: &always}},
		Containers: []v1.Container{{Name: "a", Image: "im", RestartPolicy: &never, RestartPolicyRules: []v1.ContainerRestartRule{{
			Action:    v1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
		}}}, {Name: "b", Image: "im"}},
	}}
}

func verbs(d Decision) (out []OperationKey) {
	for _, a := range d.Actions {
		out = append(out, a.Key())
	}
	return out
}

func TestAllContainersRestartInOrder(t *testing.T) {
	pod := restartablePod()
	pod.Status.Phase = v1.PodRunning
	o := NewObserved()
	o.Now, o.StartTime, o.Volumes, o.Sandbox = epoch.Add(time.Hour), epoch, true, &Sandbox{ID: "box", Ready: true}
	run := func(name string, attempt int, state InstanceState, code int32) *Instance {
		in := &Instance{ID: name + string(rune('0'+attempt)), SandboxID: "box", Name: name, Attempt: attempt, State: state, ExitCode: code,
			Started: epoch, Finished: o.Now}
		o.Containers[name] = append(o.Containers[name], in)
		o.Images[name] = Image{Ref: "ref"}
		return in
	}
	run("i", 0, StateExited, 0)
	sidecar, source, other := run("s", 0, StateRunning, 0), run("a", 0, StateExited, 42), run("b", 0, StateRunning, 0)
	status := func(d Decision) v1.PodStatus { return PodStatus(StatusInput{Pod: pod, Observed: o, Decision: d}) }

	d := Next(pod, o)
	if got := verbs(d); len(got) != 2 || got[0] != (OperationKey{KillContainer, "s"}) || got[1] != (OperationKey{KillContainer, "b"}) || d.Actions[0].Grace != 0 {
		t.Fatalf("first: %+v", d.Actions)
	}
	if s := status(d); condition(s, v1.AllContainersRestarting).Status != v1.ConditionTrue || s.Phase != v1.PodRunning {
		t.Errorf("first: %+v", s)
	}
	for _, in := range []*Instance{sidecar, other} {
		in.State, in.ExitCode, in.Replaced = StateExited, 137, true
	}
	if d = Next(pod, o); len(d.Actions) != 1 || d.Actions[0].Verb != RestartAll {
		t.Fatalf("when none runs: %+v", d.Actions)
	}
	o.BeginAnew(pod)
	if source.Replaced || !other.Replaced {
		t.Error("the back-off does not go on for the container that asked for it alone")
	}
	for _, next := range []struct {
		name  string
		state InstanceState
	}{{"i", StateExited}, {"s", StateRunning}, {"a", StateRunning}} {
		d = Next(pod, o)
		if got := verbs(d); len(got) == 0 || got[0] != (OperationKey{StartContainer, next.name}) || d.Actions[0].Attempt != 1 {
			t.Fatalf("%s: %+v", next.name, d.Actions)
		}
		s := status(d)
		if s.Phase != v1.PodRunning || condition(s, v1.AllContainersRestarting).Status != v1.ConditionFalse {
			t.Errorf("%s: %+v", next.name, s)
		}
		if st := s.ContainerStatuses[0]; st.State.Waiting == nil || st.LastTerminationState.Terminated.ExitCode != 42 {
			t.Errorf("%s: state %+v, last %+v", next.name, st.State, st.LastTerminationState)
		}
		run(next.name, 1, next.state, 0)
	}
}

func TestRestartOfAllBacksOff(t *testing.T) {
	pod := restartablePod()
	pod.Spec.InitContainers = nil
	o := NewObserved()
	o.Now, o.StartTime, o.Volumes, o.Sandbox = epoch, epoch, true, &Sandbox{ID: "box", Ready: true}
	o.Containers["a"] = []*Instance{{ID: "a", SandboxID: "box", Name: "a", State: StateExited, ExitCode: 42, Finished: epoch}}
	o.Containers["b"] = []*Instance{{ID: "b", SandboxID: "box", Name: "b", State: StateRunning}}
	o.Backoff["a"] = Backoff{Delay: 10 * time.Second, Last: epoch}
	if d := Next(pod, o); len(d.Actions) != 0 || d.Waiting["a"].Reason != "CrashLoopBackOff" || d.Wake != epoch.Add(10*time.Second) {
		t.Errorf("at first: %+v", d)
	}
	o.Now = epoch.Add(10 * time.Second)
	if d := Next(pod, o); len(d.Actions) != 1 || d.Actions[0].Key() != (OperationKey{KillContainer, "b"}) {
		t.Errorf("later: %+v", d)
	}
}
