package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/leader/scheduler/profile"
	"github.com/balsahq/balsa/leader/scheduler/rules"
	"github.com/balsahq/balsa/leader/scheduler/schedulertest"
)

// world is a scheduler that runs against a fake API server.
type world struct {
	t      *testing.T
	client *fake.Clientset
	events *events.FakeRecorder
	sched  *Scheduler

	mu    sync.Mutex
	bound map[string][]string // pod: nodes, in the order of bindings
	fail  int                 // so many bindings fail
}

func start(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	return startAs(t, func(*Scheduler) {}, objects...)
}

// startAs changes the scheduler before it runs.
func startAs(t *testing.T, change func(*Scheduler), objects ...runtime.Object) *world {
	t.Helper()
	return startConfigured(t, profile.Settings{}, change, objects...)
}

// startWith has the scheduler place pods as the settings say.
func startWith(t *testing.T, settings profile.Settings, objects ...runtime.Object) *world {
	t.Helper()
	return startConfigured(t, settings, func(*Scheduler) {}, objects...)
}

func startConfigured(t *testing.T, settings profile.Settings, change func(*Scheduler), objects ...runtime.Object) *world {
	t.Helper()
	w := &world{t: t, client: fake.NewClientset(objects...), events: events.NewFakeRecorder(10000), bound: map[string][]string{}}
	w.client.PrependReactor("create", "pods", w.bindReactor)
	s, err := New(Config{
		Client: w.client, Informers: informers.NewSharedInformerFactory(w.client, 0), Recorder: w.events,
		Rand: rand.New(rand.NewPCG(1, 2)), Settings: settings,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.sched = s
	change(s)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
	// A deletion between an informer's list and its watch is lost on the fake API, unlike additions and updates.
	w.eventually("pods are watched", func() bool {
		return slices.ContainsFunc(w.client.Actions(), func(a clienttesting.Action) bool { return a.Matches("watch", "pods") })
	})
	return w
}

func (w *world) bindReactor(action clienttesting.Action) (bool, runtime.Object, error) {
	create := action.(clienttesting.CreateAction)
	if create.GetSubresource() != "binding" {
		return false, nil, nil
	}
	b := create.GetObject().(*v1.Binding)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail > 0 {
		w.fail--
		return true, nil, errors.New("the server is on fire")
	}
	w.bound[b.Name] = append(w.bound[b.Name], b.Target.Name)
	obj, err := w.client.Tracker().Get(create.GetResource(), b.Namespace, b.Name)
	if err != nil {
		return true, nil, err
	}
	pod := obj.(*v1.Pod).DeepCopy()
	pod.Spec.NodeName = b.Target.Name
	return true, b, w.client.Tracker().Update(create.GetResource(), pod, b.Namespace)
}

// eventually polls until ok, or fails.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-deadline:
			w.t.Fatalf("waited in vain: %s (queue %+v)", what, w.sched.queue.Lengths())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (w *world) nodes(pod string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bound[pod]
}

func (w *world) add(pod *v1.Pod) {
	w.t.Helper()
	if _, err := w.client.CoreV1().Pods(pod.Namespace).Create(w.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) get(name string) *v1.Pod {
	w.t.Helper()
	p, err := w.client.CoreV1().Pods("default").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// event waits for the next event.
func (w *world) event(want string) {
	w.t.Helper()
	select {
	case got := <-w.events.Events:
		if got != want {
			w.t.Errorf("event %q, want %q", got, want)
		}
	case <-time.After(time.Minute):
		w.t.Fatalf("no event, want %q", want)
	}
}

func TestEveryPodIsBoundOnceAndNoNodeOvercommitted(t *testing.T) {
	var objects []runtime.Object
	for i := range 10 {
		objects = append(objects, schedulertest.Node(fmt.Sprintf("n%d", i), "2", "64Gi"))
	}
	w := start(t, objects...)
	var creators sync.WaitGroup
	for c := range 4 {
		creators.Go(func() {
			for i := range 50 {
				w.add(schedulertest.Pod(fmt.Sprintf("p%d-%d", c, i), schedulertest.Requests("100m", "1Mi")))
			}
		})
	}
	creators.Wait()
	w.eventually("200 pods bound", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.bound) == 200
	})
	perNode := map[string]int{}
	for pod, nodes := range w.bound {
		if len(nodes) != 1 {
			t.Errorf("pod %s was bound %d times", pod, len(nodes))
		}
		perNode[nodes[0]]++
	}
	for node, pods := range perNode {
		if pods > 20 {
			t.Errorf("node %s has %d pods where 20 fit", node, pods)
		}
	}
	w.eventually("assumed pods confirmed", func() bool { return w.sched.cache.Assumed() == 0 })
}

func TestRefusalIsToldAndUndoneByANewNode(t *testing.T) {
	w := start(t, schedulertest.Node("small", "100m", "1Gi"), schedulertest.Node("tainted", "8", "8Gi", schedulertest.Taint("x", v1.TaintEffectNoSchedule)))
	w.add(schedulertest.Pod("p", schedulertest.Requests("1", "1Mi")))
	const message = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). " +
		"preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
	w.event("Warning FailedScheduling " + message)
	w.eventually("condition", func() bool { return len(w.get("p").Status.Conditions) == 1 })
	c := w.get("p").Status.Conditions[0]
	if c.Type != v1.PodScheduled || c.Status != v1.ConditionFalse || c.Reason != v1.PodReasonUnschedulable || c.Message != message {
		t.Errorf("condition %+v", c)
	}
	if _, err := w.client.CoreV1().Nodes().Create(t.Context(), schedulertest.Node("big", "4", "4Gi"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("bound to the new node", func() bool { return len(w.nodes("p")) == 1 && w.nodes("p")[0] == "big" })
	w.event("Normal Scheduled Successfully assigned default/p to big")
}

func TestFailedBindingFreesTheNodeAndIsRetried(t *testing.T) {
	w := start(t, schedulertest.Node("n", "1", "1Gi"))
	w.mu.Lock()
	w.fail = 1
	w.mu.Unlock()
	w.add(schedulertest.Pod("p", schedulertest.Requests("1", "1Mi")))
	w.event("Warning FailedScheduling binding rejected: the server is on fire")
	w.eventually("bound after all", func() bool { return len(w.nodes("p")) == 1 })
}

// TestAPanickingRuleKeepsBackOnePodAlone plants a rule that panics for one pod, twice.
func TestAPanickingRuleKeepsBackOnePodAlone(t *testing.T) {
	before, panics := fault.Counts()[unit], 0
	w := startAs(t, func(s *Scheduler) {
		d := s.deciders[v1.DefaultSchedulerName]
		d.filters = append(d.filters, rules.Filter{Name: "Planted", Prepare: func(c *rules.Cycle) (rules.Check, *rules.Refusal) {
			if c.Pod.Object.Name == "odd" && panics < 2 {
				panics++
				panic("a pod nobody expected")
			}
			return nil, nil
		}})
	}, schedulertest.Node("n", "4", "8Gi"))
	w.add(schedulertest.Pod("odd", schedulertest.Requests("1", "1Mi")))
	w.add(schedulertest.Pod("plain", schedulertest.Requests("1", "1Mi")))
	w.eventually("the other pod is bound", func() bool { return len(w.nodes("plain")) == 1 })
	w.eventually("the pod says so", func() bool {
		return slices.ContainsFunc(w.get("odd").Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.PodScheduled && c.Reason == v1.PodReasonSchedulerError && strings.Contains(c.Message, "a pod nobody expected")
		})
	})
	w.eventually("the pod is bound in the end", func() bool { return len(w.nodes("odd")) == 1 })
	if n := fault.Counts()[unit] - before; n != 2 {
		t.Errorf("%d panics counted, want 2", n)
	}
}

func TestPreemptionMakesRoom(t *testing.T) {
	w := start(t, schedulertest.Node("n", "1", "1Gi"),
		schedulertest.Pod("low", schedulertest.Requests("1", "1Mi"), schedulertest.On("n"), func(p *v1.Pod) { p.Status.Phase = v1.PodRunning }))
	w.add(schedulertest.Pod("high", schedulertest.Requests("1", "1Mi"), schedulertest.Priority(100)))
	w.eventually("the important pod bound", func() bool { return len(w.nodes("high")) == 1 })
	var patched, deleted bool
	for _, a := range w.client.Actions() {
		if p, ok := a.(clienttesting.PatchAction); ok && p.GetName() == "low" && p.GetSubresource() == "status" {
			patched = !deleted
		}
		if d, ok := a.(clienttesting.DeleteAction); ok && d.GetName() == "low" {
			deleted = true
		}
	}
	if !patched || !deleted {
		t.Errorf("victim marked first: %t, deleted: %t", patched, deleted)
	}
	w.event("Normal Preempted Preempted by pod pod-high on node n")
}

func TestClaimThatWaitsGetsTheNodeOfItsPod(t *testing.T) {
	claim := newClaim("data", "", "late")
	claim.UID = "claim"
	w := start(t, schedulertest.Node("n", "1", "1Gi"), claim, newClass("late", "example.com/p", storagev1.VolumeBindingWaitForFirstConsumer))
	w.add(schedulertest.Pod("p", schedulertest.Claim("data")))
	claims := w.client.CoreV1().PersistentVolumeClaims("default")
	var live *v1.PersistentVolumeClaim
	w.eventually("node chosen for the claim", func() bool {
		live, _ = claims.Get(t.Context(), "data", metav1.GetOptions{})
		return live.Annotations["volume.kubernetes.io/selected-node"] == "n"
	})
	if len(w.nodes("p")) != 0 {
		t.Error("the pod was bound before its claim")
	}
	pv := newVolume("v", "data", "n")
	if _, err := w.client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	live.Spec.VolumeName = "v"
	live.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
	if _, err := claims.Update(t.Context(), live, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("pod bound", func() bool { return len(w.nodes("p")) == 1 })
}

func TestPodsOfOthersAreLeftAlone(t *testing.T) {
	w := start(t, schedulertest.Node("n", "1", "1Gi"))
	w.add(schedulertest.Pod("theirs", func(p *v1.Pod) { p.Spec.SchedulerName = "other" }))
	w.add(schedulertest.Pod("ours"))
	w.eventually("ours bound", func() bool { return len(w.nodes("ours")) == 1 })
	if len(w.nodes("theirs")) != 0 {
		t.Error("bound a pod of another scheduler")
	}
}

func TestConfigReportsEveryFault(t *testing.T) {
	_, err := New(Config{Settings: profile.Settings{Binders: -1}})
	for _, want := range []string{"Client", "Informers", "Binders"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not mention %s", err, want)
		}
	}
}

func TestMetricsCountAttemptsAndPendingPods(t *testing.T) {
	scheduled, refused := testutil.ToFloat64(attemptsTotal.WithLabelValues(DefaultName, resultScheduled)), testutil.ToFloat64(attemptsTotal.WithLabelValues(DefaultName, resultUnschedulable))
	w := start(t, schedulertest.Node("n", "2", "64Gi"))
	w.add(schedulertest.Pod("small", schedulertest.Requests("1", "1Gi")))
	w.eventually("small is bound", func() bool { return len(w.nodes("small")) == 1 })
	w.add(schedulertest.Pod("large", schedulertest.Requests("64", "1Gi")))
	w.eventually("large waits", func() bool { return w.sched.queue.Lengths().Refused == 1 })
	w.eventually("the attempts are counted", func() bool {
		return testutil.ToFloat64(attemptsTotal.WithLabelValues(DefaultName, resultScheduled)) == scheduled+1 &&
			testutil.ToFloat64(attemptsTotal.WithLabelValues(DefaultName, resultUnschedulable)) >= refused+1
	})
	want := `
# HELP scheduler_pending_pods Number of pending pods, by the queue: active, backoff, unschedulable or gated.
# TYPE scheduler_pending_pods gauge
scheduler_pending_pods{queue="active"} 0
scheduler_pending_pods{queue="backoff"} 0
scheduler_pending_pods{queue="gated"} 0
scheduler_pending_pods{queue="unschedulable"} 1
`
	if err := testutil.CollectAndCompare(stateCollector{}, strings.NewReader(want), "scheduler_pending_pods"); err != nil {
		t.Error(err)
	}
}

func TestTheLabelOfAttemptsIsBounded(t *testing.T) {
	for n, want := range map[int]string{1: "1", 14: "14", 15: "15+", 4000: "15+"} {
		if got := attemptsLabel(n); got != want {
			t.Errorf("%d attempts are %q, want %q", n, got, want)
		}
	}
}
