package queue_test

import (
	"context"
	"errors"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/schedulertest"
)

func newQueue() (*queue.Queue, *clocktesting.FakeClock) {
	c := clocktesting.NewFakeClock(time.Unix(1000, 0))
	return queue.New(queue.Config{Clock: c, Hints: map[string][]queue.Hint{
		"fit": {{Kind: queue.Pod, Action: queue.Delete}},
		"taint": {{Kind: queue.Node, Action: queue.Update, Helps: func(_ *v1.Pod, e queue.Event) bool {
			return len(e.New.(*v1.Node).Spec.Taints) == 0
		}}},
	}}), c
}

// once is over when it was looked at: Pop takes what is due and does not wait.
type once struct {
	context.Context
	seen bool
}

func (o *once) Err() error {
	if o.seen {
		return context.Canceled
	}
	o.seen = true
	return nil
}

func (o *once) Done() <-chan struct{} {
	over := make(chan struct{})
	close(over)
	return over
}

// next pops without waiting; nil when nothing is due.
func next(t *testing.T, q *queue.Queue) *queue.Item {
	t.Helper()
	item, err := q.Pop(&once{Context: t.Context()})
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	return item
}

func name(item *queue.Item) string {
	if item == nil {
		return ""
	}
	return item.Pod.Object.Name
}

func TestOrderIsPriorityThenArrival(t *testing.T) {
	q, _ := newQueue()
	for _, p := range []*v1.Pod{schedulertest.Pod("first"), schedulertest.Pod("second"), schedulertest.Pod("vip", schedulertest.Priority(5)), schedulertest.Pod("least", schedulertest.Priority(-1))} {
		q.Add(schedulertest.Info(p))
	}
	for _, want := range []string{"vip", "first", "second", "least"} {
		item := next(t, q)
		if name(item) != want {
			t.Fatalf("popped %q, want %q", name(item), want)
		}
		q.Done(item)
	}
}

func TestGatedPodWaitsForItsGates(t *testing.T) {
	q, _ := newQueue()
	gated := schedulertest.Pod("p", func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "x"}} })
	q.Add(schedulertest.Info(gated))
	if item := next(t, q); item != nil {
		t.Fatal("a gated pod was popped")
	}
	q.Add(schedulertest.Info(schedulertest.Pod("p")))
	if item := next(t, q); name(item) != "p" {
		t.Fatal("the pod did not come when its gates went")
	}
}

func TestRefusedPodComesBackOnlyForEventsThatHelp(t *testing.T) {
	q, c := newQueue()
	q.Add(schedulertest.Info(schedulertest.Pod("p")))
	item := next(t, q)
	q.Refused(item, item.Pod, []string{"taint"})
	c.Step(time.Minute)
	q.Happened(queue.Event{Kind: queue.Pod, Action: queue.Delete})
	q.Happened(queue.Event{Kind: queue.Node, Action: queue.Update, New: schedulertest.Node("n", "1", "1Gi", schedulertest.Taint("x", v1.TaintEffectNoSchedule))})
	if next(t, q) != nil {
		t.Fatal("an event that does not help brought the pod back")
	}
	q.Happened(queue.Event{Kind: queue.Node, Action: queue.Update, New: schedulertest.Node("n", "1", "1Gi")})
	if next(t, q) != item {
		t.Fatal("an event that helps did not bring the pod back")
	}
}

func TestEventWhileInFlightIsNotMissed(t *testing.T) {
	q, c := newQueue()
	q.Add(schedulertest.Info(schedulertest.Pod("p")))
	item := next(t, q)
	q.Happened(queue.Event{Kind: queue.Pod, Action: queue.Delete})
	q.Refused(item, item.Pod, []string{"fit"})
	if l := q.Lengths(); l.Waiting != 1 {
		t.Fatalf("the pod does not sit out its back-off: %+v", l)
	}
	c.Step(time.Second)
	if next(t, q) != item {
		t.Fatal("the pod did not come back")
	}
}

func TestBackoffDoublesUpToItsLimit(t *testing.T) {
	q, c := newQueue()
	q.Add(schedulertest.Info(schedulertest.Pod("p")))
	for _, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		item := next(t, q)
		q.Failed(item, item.Pod)
		c.Step(want*time.Second - time.Millisecond)
		if next(t, q) != nil {
			t.Fatalf("came back before %d s", want)
		}
		c.Step(time.Millisecond)
		if q.Lengths().Waiting+q.Lengths().Active != 1 {
			t.Fatal("lost")
		}
	}
}

func TestNobodyRestsForEver(t *testing.T) {
	q, c := newQueue()
	q.Add(schedulertest.Info(schedulertest.Pod("p")))
	item := next(t, q)
	q.Refused(item, item.Pod, []string{"fit"})
	c.Step(5 * time.Minute)
	if next(t, q) != item {
		t.Fatal("the pod still rests after five minutes")
	}
}

func TestStatusWritesDoNotBringAPodBack(t *testing.T) {
	q, c := newQueue()
	p := schedulertest.Pod("p")
	q.Add(schedulertest.Info(p))
	item := next(t, q)
	q.Refused(item, item.Pod, []string{"fit"})
	c.Step(time.Minute)
	written := p.DeepCopy()
	written.ResourceVersion = "2"
	written.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse}}
	q.Add(schedulertest.Info(written))
	if next(t, q) != nil {
		t.Fatal("a condition brought the pod back")
	}
	changed := written.DeepCopy()
	changed.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
	q.Add(schedulertest.Info(changed))
	if next(t, q) != item {
		t.Fatal("a new toleration did not bring the pod back")
	}
}

func TestDeletedPodsAreForgotten(t *testing.T) {
	q, _ := newQueue()
	p := schedulertest.Pod("p")
	q.Add(schedulertest.Info(p))
	item := next(t, q)
	q.Delete(p.UID)
	q.Refused(item, item.Pod, []string{"fit"})
	if l := q.Lengths(); l != (queue.Lengths{}) {
		t.Fatalf("something is left: %+v", l)
	}
}
