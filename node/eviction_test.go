package node

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/balsahq/balsa/node/eviction"
	"github.com/balsahq/balsa/node/nodetest"
)

// withThresholds gives the agent thresholds and a machine of 1000 of everything; left sets what is left of a signal.
func (b *bench) withThresholds(f eviction.Flags) (left func(eviction.Signal, int64)) {
	b.t.Helper()
	c, err := f.Parse()
	if err != nil {
		b.t.Fatal(err)
	}
	var memory, disk atomic.Int64
	memory.Store(1000)
	disk.Store(1000)
	b.prepare = func(a *Agent) {
		a.cfg.Eviction = c
		a.observe = func(context.Context) eviction.Observations {
			return eviction.Observations{
				eviction.MemoryAvailable: {Available: memory.Load(), Capacity: 1000, At: time.Now()},
				eviction.NodeFsAvailable: {Available: disk.Load(), Capacity: 1000, At: time.Now()},
			}
		}
	}
	b.stop()
	b.start()
	return func(s eviction.Signal, n int64) {
		if s == eviction.MemoryAvailable {
			memory.Store(n)
		} else {
			disk.Store(n)
		}
	}
}

// named is a pod of one container that has the pod's name.
func named(name string) *v1.Pod {
	p := nodetest.Pod(v1.RestartPolicyAlways, 0, 1)
	p.Name, p.UID, p.Spec.Containers[0].Name = name, types.UID(name), name
	return p
}

func (b *bench) nodeCondition(t v1.NodeConditionType) string {
	b.t.Helper()
	n, err := b.client.CoreV1().Nodes().Get(context.Background(), "n1", metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range n.Status.Conditions {
		if c.Type == t {
			return string(c.Status) + " " + c.Reason
		}
	}
	return "none"
}

func (b *bench) events(reason string) string {
	b.t.Helper()
	list, err := b.client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, e := range list.Items {
		if e.Reason == reason {
			out = append(out, e.Type+" "+e.InvolvedObject.Kind+" "+e.Message)
		}
	}
	return strings.Join(out, "; ")
}

func TestANodeShortOfMemoryEvictsOnePodAndTakesNoneInUntilItHasRecovered(t *testing.T) {
	onBench(t, func(b *bench) {
		left := b.withThresholds(eviction.Flags{Hard: map[string]string{"memory.available": "100"}, TransitionPeriod: time.Minute})
		for i, name := range []string{"low", "high"} {
			p, priority := named(name), int32(i)
			p.Spec.Priority = &priority
			b.rt.Uses(name, 50<<20)
			b.rt.Script(name, nodetest.Run{Stubborn: true})
			b.run(p)
		}
		b.wait(15 * time.Second)
		if c := b.nodeCondition(v1.NodeMemoryPressure); c != "False KubeletHasSufficientMemory" {
			t.Errorf("at first: %s", c)
		}
		left(eviction.MemoryAvailable, 99)
		for i := 0; i < 11 && b.count("stop low 1") == 0; i++ {
			b.wait(0)
		}
		if c := b.nodeCondition(v1.NodeMemoryPressure); c != "True KubeletHasInsufficientMemory" {
			t.Errorf("the condition is not there at once: %s", c)
		}
		left(eviction.MemoryAvailable, 200) // it is enough that one goes
		b.wait(3 * time.Second)
		s := b.get("low").Status
		if s.Phase != v1.PodFailed || s.Reason != "Evicted" || s.Message != "The node was low on resource: memory. Threshold quantity: 100, available: 99. Container low was using 50Mi, request is 0, has larger consumption of memory. " {
			t.Errorf("phase %s, reason %s, message %q", s.Phase, s.Reason, s.Message)
		}
		if _, c := podutil.GetPodCondition(&s, v1.DisruptionTarget); c == nil || c.Status != v1.ConditionTrue || c.Reason != "TerminationByKubelet" || c.Message != s.Message {
			t.Errorf("condition: %+v", c)
		}
		if e := b.events("Evicted"); e != "Warning Pod "+s.Message {
			t.Errorf("events: %q", e)
		}
		if e := b.events("EvictionThresholdMet"); e != "Warning Node Attempting to reclaim memory" {
			t.Errorf("events of the node: %q", e)
		}
		if b.count("stop low 1") != 1 || b.get("high").Status.Phase != v1.PodRunning {
			t.Errorf("the runtime was asked for: %q", b.rt.Log())
		}
		b.run(named("late"))
		b.wait(time.Second)
		if s := b.get("late").Status; s.Phase != v1.PodFailed || s.Reason != "Evicted" || s.Message != "Pod was rejected: The node had condition: [MemoryPressure]. " {
			t.Errorf("taken in: %s %s %q", s.Phase, s.Reason, s.Message)
		}
		b.wait(30 * time.Second)
		if c := b.nodeCondition(v1.NodeMemoryPressure); c != "True KubeletHasInsufficientMemory" {
			t.Errorf("within the transition period: %s", c)
		}
		b.wait(time.Minute)
		if c := b.nodeCondition(v1.NodeMemoryPressure); c != "False KubeletHasSufficientMemory" {
			t.Errorf("after the transition period: %s", c)
		}
		b.run(named("later"))
		b.wait(time.Second)
		if p := b.get("later").Status.Phase; p != v1.PodRunning {
			t.Errorf("after the transition period: %s", p)
		}
	})
}

func TestTheNextPodGoesWhenTheOneBeforeHasEndedAndDidNotHelp(t *testing.T) {
	onBench(t, func(b *bench) {
		left := b.withThresholds(eviction.Flags{Soft: map[string]string{"memory.available": "100"}, SoftGrace: map[string]string{"memory.available": "30s"}, MaxPodGrace: 15})
		for i, name := range []string{"first", "second"} {
			p, priority, grace := named(name), int32(i), int64(100)
			p.Spec.Priority, p.Spec.TerminationGracePeriodSeconds = &priority, &grace
			b.rt.Script(name, nodetest.Run{Stubborn: true})
			b.run(p)
		}
		b.wait(0)
		left(eviction.MemoryAvailable, 99)
		b.wait(25 * time.Second)
		if b.count("stop first 15") != 0 {
			t.Error("evicted within the grace period of the threshold")
		}
		b.wait(20 * time.Second)
		if b.count("stop first 15") != 1 || b.count("stop second 15") != 0 || b.get("first").Status.Phase != v1.PodRunning {
			t.Errorf("while the first one stops: %s, %q", b.get("first").Status.Phase, b.rt.Log())
		}
		b.wait(12 * time.Second)
		if p := b.get("first").Status.Phase; p != v1.PodFailed || b.count("stop second 15") != 1 {
			t.Errorf("when it has stopped: %s, %q", p, b.rt.Log())
		}
	})
}

func TestAFullDiskCostsDeadContainersBeforePods(t *testing.T) {
	onBench(t, func(b *bench) {
		left := b.withThresholds(eviction.Flags{Hard: map[string]string{"nodefs.available": "10%"}, MinimumReclaim: map[string]string{"nodefs.available": "5%"}})
		done := named("done")
		done.Spec.RestartPolicy = v1.RestartPolicyNever
		b.rt.Script("done", nodetest.Run{Lasts: time.Second})
		b.run(done)
		b.run(named("runs"))
		b.wait(5 * time.Second)
		b.rt.Fail("RemoveContainer", func() error { left(eviction.NodeFsAvailable, 150); return nil })
		left(eviction.NodeFsAvailable, 99)
		b.wait(11 * time.Second)
		if n := len(b.containers("done")); n != 0 || b.get("runs").Status.Phase != v1.PodRunning {
			t.Errorf("%d dead containers, phase %s", n, b.get("runs").Status.Phase)
		}
		if s := b.get("done").Status; s.Phase != v1.PodSucceeded || s.ContainerStatuses[0].State.Terminated == nil || s.ContainerStatuses[0].State.Terminated.Reason != "Completed" {
			t.Errorf("status of the pod that had ended: %+v", s)
		}
		b.wait(10 * time.Second) // it is measured that enough was reclaimed
		left(eviction.NodeFsAvailable, 149)
		b.wait(10 * time.Second)
		if c := b.nodeCondition(v1.NodeDiskPressure); c != "False KubeletHasNoDiskPressure" {
			t.Errorf("above the threshold: %s", c)
		}
		left(eviction.NodeFsAvailable, 99)
		b.wait(12 * time.Second)
		if s := b.get("runs").Status; s.Phase != v1.PodFailed || !strings.HasPrefix(s.Message, "The node was low on resource: ephemeral-storage. Threshold quantity: 100, available: 99. ") {
			t.Errorf("no dead container is left: %s %q", s.Phase, s.Message)
		}
	})
}

func (b *bench) containers(name string) (ids []string) {
	all, err := b.rt.ListContainers(context.Background(), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range all {
		if c.Metadata.Name == name {
			ids = append(ids, c.Id)
		}
	}
	return ids
}

func TestMemoryEventsNeedNoTick(t *testing.T) {
	onBench(t, func(b *bench) {
		left := b.withThresholds(eviction.Flags{Hard: map[string]string{"memory.available": "100"}, TransitionPeriod: time.Minute})
		event := make(chan struct{})
		prepare := b.prepare
		b.prepare = func(a *Agent) {
			prepare(a)
			a.memoryEvents = func(ctx context.Context, tell func()) {
				for {
					select {
					case <-ctx.Done():
						return
					case <-event:
						tell()
					}
				}
			}
		}
		b.stop()
		b.start()
		b.run(named("p"))
		b.wait(0)
		left(eviction.MemoryAvailable, 99)
		event <- struct{}{}
		b.wait(2 * time.Second)
		if c := b.nodeCondition(v1.NodeMemoryPressure); c != "True KubeletHasInsufficientMemory" || b.get("p").Status.Phase != v1.PodFailed {
			t.Errorf("%s, phase %s", c, b.get("p").Status.Phase)
		}
	})
}

func TestAllocatableIsWhatPodsMayUseWithoutEviction(t *testing.T) {
	thresholds, err := eviction.Flags{Hard: map[string]string{"memory.available": "100Mi", "nodefs.available": "10%"}}.Parse()
	if err != nil {
		t.Fatal(err)
	}
	c := Config{MaxPods: 10, Eviction: thresholds, Reserved: v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m"), v1.ResourceMemory: resource.MustParse("1Gi"), "pid": resource.MustParse("1000")}}
	capacity := v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("8Gi"), v1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		v1.ResourcePods: resource.MustParse("10"), "hugepages-2Mi": resource.MustParse("512Mi")}
	room, most := c.allocatable(capacity), c.podsRoom(capacity)
	for name, want := range map[v1.ResourceName]string{v1.ResourceCPU: "1500m", v1.ResourceMemory: "6556Mi", v1.ResourceEphemeralStorage: "90Gi", v1.ResourcePods: "10", "hugepages-2Mi": "512Mi"} {
		if q := room[name]; q.String() != want {
			t.Errorf("%s: %s, want %s", name, q.String(), want)
		}
	}
	if q := most[v1.ResourceMemory]; q.String() != "6656Mi" || len(room) != len(capacity) {
		t.Errorf("limit of all pods: %s; %v", q.String(), room)
	}
	b := Config{NodeName: "n", Version: "v", Reserved: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Ei")}}
	if err := b.Validate(); err == nil || !strings.Contains(err.Error(), "1Ei memory is reserved, of a capacity of") {
		t.Errorf("%v", err)
	}
}
