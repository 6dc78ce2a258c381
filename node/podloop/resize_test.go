package podloop

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func amounts(cpu, memory string) v1.ResourceRequirements {
	l := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
	return v1.ResourceRequirements{Requests: l, Limits: l}
}

// resizablePod has one container that may be restarted when the given resources change.
func resizablePod(r v1.ResourceRequirements, restartFor ...v1.ResourceName) *v1.Pod {
	c := v1.Container{Name: "c", Image: "im", Resources: r}
	for _, name := range restartFor {
		c.ResizePolicy = append(c.ResizePolicy, v1.ContainerResizePolicy{ResourceName: name, RestartPolicy: v1.RestartContainer})
	}
	p := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyOnFailure, Containers: []v1.Container{c}}}
	p.Generation = 2
	return p
}

// runningPod is what is observed of a pod whose container c runs with what was allocated to was.
func runningPod(was, now *v1.Pod) *Observed {
	o := NewObserved()
	o.Now, o.StartTime, o.Volumes = epoch, epoch, true
	o.Sandbox = &Sandbox{ID: "s", Ready: true}
	o.Containers["c"] = []*Instance{{ID: "id", SandboxID: "s", Name: "c", State: StateRunning, Started: epoch}}
	o.Actual.Allocate(was, now, func(string) (string, bool) { return "id", true })
	o.Resizing = &Resizing{Generation: now.Generation}
	return o
}

func TestWhichResizesRestartAContainer(t *testing.T) {
	level := func(p *v1.Pod, r v1.ResourceRequirements) *v1.Pod {
		p.Spec.Resources = &r
		return p
	}
	none := v1.ResourceRequirements{}
	for name, c := range map[string]struct {
		was, now *v1.Pod
		want     Verb
	}{
		"cpu, no policy":     {resizablePod(amounts("1", "1Gi")), resizablePod(amounts("2", "1Gi")), ResizePod},
		"cpu, for memory":    {resizablePod(amounts("1", "1Gi")), resizablePod(amounts("2", "1Gi"), v1.ResourceMemory), ResizePod},
		"cpu, for cpu":       {resizablePod(amounts("1", "1Gi")), resizablePod(amounts("2", "1Gi"), v1.ResourceCPU), KillContainer},
		"memory, for memory": {resizablePod(amounts("1", "1Gi")), resizablePod(amounts("1", "2Gi"), v1.ResourceCPU, v1.ResourceMemory), KillContainer},
		"the pod's memory, which is the container's limit": {level(resizablePod(none), amounts("1", "1Gi")),
			level(resizablePod(none, v1.ResourceMemory), amounts("1", "2Gi")), KillContainer},
		"the pod's memory beside the container's own": {level(resizablePod(amounts("1", "1Gi")), amounts("2", "2Gi")),
			level(resizablePod(amounts("1", "1Gi"), v1.ResourceMemory), amounts("2", "3Gi")), ResizePod},
		"nothing": {resizablePod(amounts("1", "1Gi")), resizablePod(amounts("1", "1Gi"), v1.ResourceCPU), ResizePod},
	} {
		d := Next(c.now, runningPod(c.was, c.now))
		if len(d.Actions) != 1 || d.Actions[0].Verb != c.want {
			t.Errorf("%s: %+v, want %s", name, d.Actions, c.want)
		}
	}
}

func TestAContainerStoppedForItsResizeStartsAtOnce(t *testing.T) {
	was, now := resizablePod(amounts("1", "1Gi")), resizablePod(amounts("2", "1Gi"), v1.ResourceCPU)
	o := runningPod(was, now)
	o.Images["c"], o.Backoff["c"] = Image{Ref: "ref"}, Backoff{Delay: time.Minute, Last: epoch}
	in := o.Latest("c")
	in.State, in.Finished, in.Replaced = StateExited, epoch, true // with code 0, which OnFailure takes for the end
	o.Actual.Ended("c", "id")
	d := Next(now, o)
	if d.Stopping || len(d.Actions) != 2 || d.Actions[0].Verb != StartContainer || d.Actions[1].Verb != ResizePod {
		t.Fatalf("%+v", d)
	}
	if s := PodStatus(StatusInput{Pod: now, Observed: o, Decision: d}); IsTerminal(s.Phase) {
		t.Errorf("phase %s while it restarts", s.Phase)
	}
}

func TestNoCgroupShrinksBeforeAContainerHasRestarted(t *testing.T) {
	was, now := resizablePod(amounts("2", "1Gi")), resizablePod(amounts("1", "1Gi"), v1.ResourceCPU)
	o := runningPod(was, now)
	o.Busy[OperationKey{KillContainer, "c"}] = 30
	if d := Next(now, o); len(d.Actions) != 0 {
		t.Errorf("while it stops: %+v", d.Actions)
	}
	delete(o.Busy, OperationKey{KillContainer, "c"})
	o.Actual.Ended("c", "id")
	o.Containers["c"][0].State = StateExited
	o.Busy[OperationKey{StartContainer, "c"}] = 0
	if d := Next(now, o); len(d.Actions) != 1 || d.Actions[0].Verb != ResizePod {
		t.Errorf("while it starts with less: %+v", d.Actions)
	}
}

func TestStatusWhileAResizeIsCarriedOut(t *testing.T) {
	was, now := resizablePod(amounts("1", "1Gi")), resizablePod(amounts("2", "1Gi"))
	o := runningPod(was, now)
	status := func() v1.PodStatus {
		return PodStatus(StatusInput{Pod: now, Observed: o, Decision: Next(now, o)})
	}
	s := status()
	allocated, actual := s.ContainerStatuses[0].AllocatedResources, s.ContainerStatuses[0].Resources.Requests
	if allocated.Cpu().Value() != 2 || actual.Cpu().Value() != 1 || s.AllocatedResources.Cpu().Value() != 2 || s.Resources.Requests.Cpu().Value() != 1 {
		t.Errorf("in progress: allocated %v, actual %v; pod %v, %v", allocated, actual, s.AllocatedResources, s.Resources)
	}
	if c := resizeCondition(&s, v1.PodResizeInProgress); c == nil || c.ObservedGeneration != 2 || c.Reason != "" {
		t.Errorf("condition %+v", c)
	}
	o.Resizing.Reason, o.Resizing.Message = v1.PodReasonError, "no"
	if s := status(); resizeCondition(&s, v1.PodResizeInProgress).Message != "no" {
		t.Error("the error is not shown")
	}
	o.Actual, o.Resizing = Actual{}, nil
	if s = status(); s.ContainerStatuses[0].Resources.Requests.Cpu().Value() != 2 || resizeCondition(&s, v1.PodResizeInProgress) != nil {
		t.Errorf("afterwards: %+v, %v", s.ContainerStatuses[0].Resources, s.Conditions)
	}
}

// TestStatusBeforeAResizeIsJudged: until the node has judged a resize, observedGeneration stays at the old value.
func TestStatusBeforeAResizeIsJudged(t *testing.T) {
	pod := resizablePod(amounts("1", "1Gi"))
	pod.Status.ObservedGeneration = 1
	o := runningPod(pod, pod)
	o.Actual, o.Resizing, o.Undecided = Actual{}, nil, true
	if s := PodStatus(StatusInput{Pod: pod, Observed: o}); s.ObservedGeneration != 1 {
		t.Errorf("generation %d", s.ObservedGeneration)
	}
	o.Undecided, o.Pending = false, &Pending{Reason: v1.PodReasonDeferred, Message: "full", Generation: 2}
	s := PodStatus(StatusInput{Pod: pod, Observed: o})
	if c := resizeCondition(&s, v1.PodResizePending); s.ObservedGeneration != 2 || c == nil || c.Reason != v1.PodReasonDeferred || c.ObservedGeneration != 2 {
		t.Errorf("generation %d, %+v", s.ObservedGeneration, c)
	}
	pod.Status = s
	o.Undecided = true
	if s := PodStatus(StatusInput{Pod: pod, Observed: o}); resizeCondition(&s, v1.PodResizePending) == nil {
		t.Error("the condition is gone before the next resize is judged")
	}
}

func resizeCondition(s *v1.PodStatus, t v1.PodConditionType) *v1.PodCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

func TestActualFollowsContainers(t *testing.T) {
	small, large := resizablePod(amounts("1", "1Gi")), resizablePod(amounts("2", "1Gi"))
	o := runningPod(small, large)
	if g := o.Actual.Containers["c"]; g.ID != "id" || g.Amounts().CPULimit != 1000 || o.Actual.On(large).Spec.Containers[0].Resources.Limits.Cpu().Value() != 1 {
		t.Fatalf("%+v", o.Actual)
	}
	o.Actual.Allocate(large, small, func(string) (string, bool) { return "id", true })
	if len(o.Actual.Containers) != 0 || !o.Actual.Group {
		t.Errorf("taken back before it was carried out: %+v", o.Actual)
	}
	o.Actual.Started(large, "c", Given{ID: "new", Resources: small.Spec.Containers[0].Resources})
	o.Actual.Ended("c", "id")
	if o.Actual.Containers["c"].ID != "new" {
		t.Error("the end of another run counts")
	}
	o.Actual.Keep(func(string) (string, bool) { return "other", true })
	if len(o.Actual.Containers) != 0 {
		t.Error("what another run had is kept")
	}
}
