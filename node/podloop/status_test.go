package podloop

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"pgregory.net/rapid"

	"github.com/balsahq/balsa/node/nodetest"
)

func statusAfter(pod *v1.Pod, o *Observed) v1.PodStatus {
	return PodStatus(StatusInput{Pod: pod, Observed: o, Decision: Next(pod, o), HostIPs: []string{"10.0.0.1"}, RuntimeName: "containerd"})
}

func condition(s v1.PodStatus, t v1.PodConditionType) v1.PodCondition {
	_, c := podutil.GetPodConditionFromList(s.Conditions, t)
	if c == nil {
		return v1.PodCondition{}
	}
	return *c
}

func TestStatusOfANewPod(t *testing.T) {
	pod, o := nodetest.Pod(v1.RestartPolicyAlways, 1, 1), NewObserved()
	o.Now, o.StartTime = epoch, epoch
	s := statusAfter(pod, o)
	if s.Phase != v1.PodPending || s.HostIP != "10.0.0.1" || s.QOSClass != v1.PodQOSBestEffort {
		t.Errorf("%+v", s)
	}
	if w := s.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "PodInitializing" {
		t.Errorf("waiting: %+v", s.ContainerStatuses[0].State)
	}
	if c := condition(s, v1.PodInitialized); c.Status != v1.ConditionFalse || c.Reason != "ContainersNotInitialized" ||
		c.Message != "containers with incomplete status: [i0]" {
		t.Errorf("initialized: %+v", c)
	}
	if c := condition(s, v1.PodReady); c.Reason != "ContainersNotReady" || c.Message != "containers with unready status: [c0]" {
		t.Errorf("ready: %+v", c)
	}
}

func TestTransitionTimeStaysWithTheStatus(t *testing.T) {
	pod, o := nodetest.Pod(v1.RestartPolicyAlways, 0, 1), NewObserved()
	o.Now, o.StartTime = epoch, epoch
	pod.Status = statusAfter(pod, o)
	o.Now = epoch.Add(time.Minute)
	o.Volumes, o.Sandbox = true, &Sandbox{ID: "s", Ready: true, IPs: []string{"10.1.1.1"}}
	o.Merge(&Instance{ID: "x", SandboxID: "s", Name: "c0", State: StateRunning, Started: o.Now})
	s := statusAfter(pod, o)
	if c := condition(s, v1.PodReady); c.Status != v1.ConditionTrue || !c.LastTransitionTime.Time.Equal(o.Now) {
		t.Errorf("ready: %+v", c)
	}
	if c := condition(s, v1.PodInitialized); !c.LastTransitionTime.Time.Equal(epoch) {
		t.Errorf("initialized: %+v", c)
	}
	if s.Phase != v1.PodRunning || s.PodIP != "10.1.1.1" {
		t.Errorf("%+v", s)
	}
}

func TestReadinessGateHoldsReadyBack(t *testing.T) {
	pod, o := nodetest.Pod(v1.RestartPolicyAlways, 0, 1), NewObserved()
	pod.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "x/y"}}
	o.Now, o.Volumes, o.Sandbox = epoch, true, &Sandbox{ID: "s", Ready: true}
	o.Merge(&Instance{ID: "x", SandboxID: "s", Name: "c0", State: StateRunning})
	if c := condition(statusAfter(pod, o), v1.PodReady); c.Reason != "ReadinessGatesNotReady" {
		t.Errorf("without the condition: %+v", c)
	}
	pod.Status.Conditions = []v1.PodCondition{{Type: "x/y", Status: v1.ConditionTrue}}
	s := statusAfter(pod, o)
	if c := condition(s, v1.PodReady); c.Status != v1.ConditionTrue {
		t.Errorf("with the condition: %+v", c)
	}
	if c := condition(s, "x/y"); c.Status != v1.ConditionTrue {
		t.Error("the condition of another was lost")
	}
}

func TestPhases(t *testing.T) {
	exit := func(code int32) func(*Observed) {
		return func(o *Observed) {
			o.Merge(&Instance{ID: "x", SandboxID: "s", Name: "c0", State: StateExited, ExitCode: code, Finished: epoch})
		}
	}
	deleted := func(p *v1.Pod) { now := metav1.NewTime(epoch); p.DeletionTimestamp = &now }
	for name, c := range map[string]struct {
		policy v1.RestartPolicy
		edit   func(*v1.Pod)
		given  func(*Observed)
		want   v1.PodPhase
	}{
		"ended well":              {v1.RestartPolicyNever, nil, exit(0), v1.PodSucceeded},
		"ended badly":             {v1.RestartPolicyNever, nil, exit(1), v1.PodFailed},
		"will be restarted":       {v1.RestartPolicyAlways, nil, exit(1), v1.PodRunning},
		"deleted after a crash":   {v1.RestartPolicyAlways, deleted, exit(1), v1.PodFailed},
		"deleted, ended well":     {v1.RestartPolicyAlways, deleted, exit(0), v1.PodSucceeded},
		"deleted before it began": {v1.RestartPolicyAlways, deleted, func(o *Observed) { o.Sandbox = nil }, v1.PodFailed},
	} {
		t.Run(name, func(t *testing.T) {
			pod, o := nodetest.Pod(c.policy, 0, 1), NewObserved()
			o.Now, o.StartTime, o.Volumes, o.Sandbox = epoch, epoch, true, &Sandbox{ID: "s", Ready: true}
			c.given(o)
			if c.edit != nil {
				c.edit(pod)
			}
			if s := statusAfter(pod, o); s.Phase != c.want {
				t.Errorf("phase %s, want %s: %+v", s.Phase, c.want, s)
			}
		})
	}
}

// TestStatusNeverLeavesATerminalPhase whatever is observed later.
func TestStatusNeverLeavesATerminalPhase(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt, nodetest.Pod(rapid.SampledFrom([]v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}).Draw(rt, "policy"), 1, 2))
		for range 40 {
			w.begin()
			s := statusAfter(w.pod, w.o)
			if IsTerminal(w.pod.Status.Phase) && s.Phase != w.pod.Status.Phase {
				rt.Fatalf("from %s to %s", w.pod.Status.Phase, s.Phase)
			}
			if IsTerminal(s.Phase) && anyRunning(w.o) {
				rt.Fatalf("%s while a container runs", s.Phase)
			}
			if len(s.ContainerStatuses) != 2 || len(s.InitContainerStatuses) != 1 {
				rt.Fatalf("statuses are missing: %+v", s)
			}
			w.pod = w.pod.DeepCopy()
			w.pod.Status = s
			if rapid.Bool().Draw(rt, "end one") {
				if ks := w.keys(); len(ks) > 0 {
					w.finish(rapid.SampledFrom(ks).Draw(rt, "op"), rapid.IntRange(0, 4).Draw(rt, "fail") == 0)
				}
			} else {
				w.exit(rapid.SampledFrom(w.containers()).Draw(rt, "exit"), int32(rapid.IntRange(0, 1).Draw(rt, "code")))
			}
			w.o.Now = w.o.Now.Add(time.Duration(rapid.IntRange(0, 9).Draw(rt, "seconds")) * time.Second)
		}
	})
}

func TestStatusOfAContainerSaysWhatRanAndWhatRuns(t *testing.T) {
	pod, o := nodetest.Pod(v1.RestartPolicyAlways, 0, 1), NewObserved()
	o.Now, o.StartTime = epoch, epoch
	pod.Generation = 9
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v", ReadOnly: true}}
	o.Sandbox, o.Volumes = &Sandbox{ID: "s", Ready: true}, true
	user := &v1.ContainerUser{Linux: &v1.LinuxContainerUser{UID: 1, GID: 2, SupplementalGroups: []int64{3}}}
	o.Containers["c0"] = []*Instance{
		{ID: "one", SandboxID: "s", Name: "c0", State: StateExited, Started: epoch.Add(-3 * time.Minute), Finished: epoch.Add(-2 * time.Minute), ExitCode: 3, Reason: "Error"},
		{ID: "two", SandboxID: "s", Name: "c0", Attempt: 1, State: StateRunning, Started: epoch.Add(-time.Minute), ImageID: "sha256:1", User: user},
	}
	s := statusAfter(pod, o)
	c := s.ContainerStatuses[0]
	if r := c.State.Running; r == nil || !r.StartedAt.Time.Equal(epoch.Add(-time.Minute)) || c.ImageID != "sha256:1" || c.RestartCount != 1 || c.User != user {
		t.Errorf("State, ImageID, User: %+v", c)
	}
	if l := c.LastTerminationState.Terminated; l == nil || l.ExitCode != 3 || l.Reason != "Error" || !l.StartedAt.Time.Equal(epoch.Add(-3*time.Minute)) || !l.FinishedAt.Time.Equal(epoch.Add(-2*time.Minute)) {
		t.Errorf("lastState: %+v", c.LastTerminationState)
	}
	if m := c.VolumeMounts; len(m) != 1 || m[0].Name != "v" || m[0].MountPath != "/v" || !m[0].ReadOnly {
		t.Errorf("VolumeMounts: %+v", m)
	}
	if s.ObservedGeneration != 9 || s.Conditions[0].ObservedGeneration != 9 {
		t.Errorf("ObservedGeneration: %d, %+v", s.ObservedGeneration, s.Conditions[0])
	}
}

func TestHealthOfDevicesIsInTheStatus(t *testing.T) {
	pod, o := nodetest.Pod(v1.RestartPolicyAlways, 0, 2), NewObserved()
	o.Now = epoch
	sick := []v1.ResourceStatus{{Name: "example.com/gpu", Resources: []v1.ResourceHealth{{ResourceID: "a", Health: v1.ResourceHealthStatusUnhealthy}}}}
	health := func(container string) []v1.ResourceStatus {
		if container == "c0" {
			return sick
		}
		return nil
	}
	s := PodStatus(StatusInput{Pod: pod, Observed: o, Decision: Next(pod, o), Health: health})
	if got := s.ContainerStatuses; len(got[0].AllocatedResourcesStatus) != 1 || got[1].AllocatedResourcesStatus != nil {
		t.Errorf("statuses: %+v", got)
	}
	pod.Status = s
	s = PodStatus(StatusInput{Pod: pod, Observed: o, Decision: Next(pod, o), Health: func(string) []v1.ResourceStatus { return nil }})
	if got := s.ContainerStatuses[0].AllocatedResourcesStatus; len(got) != 1 {
		t.Errorf("the last health is lost when the devices are given back: %+v", got)
	}
}

func TestAPodWaitsForItsDevices(t *testing.T) {
	pod, o := nodetest.Pod(v1.RestartPolicyAlways, 0, 1), NewObserved()
	o.Now, o.Unallocated = epoch, true
	for _, a := range Next(pod, o).Actions {
		if a.Verb != AllocateResources && a.Verb != PullImage {
			t.Errorf("%s before the devices are allocated", a.Verb)
		}
	}
	o.Unallocated = false
	if verbs := Next(pod, o).Actions; len(verbs) < 2 {
		t.Errorf("after that: %+v", verbs)
	}
}
