package replicaset

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func setOf(n int32) *apps.ReplicaSet {
	return &apps.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: apps.ReplicaSetSpec{Replicas: &n}}
}

func podReady(name string, since time.Duration) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{NodeName: "n"},
		Status: v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-since))}}},
	}
}

func podPending(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Status: v1.PodStatus{Phase: v1.PodPending}}
}

// One step always brings the number of pods to what is asked for, and never deletes a ready pod while it keeps one that
// is not.
func TestDecideReachesTheNumberInOneStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.Int32Range(0, 20).Draw(t, "want")
		var active []*v1.Pod
		for i := range rapid.IntRange(0, 20).Draw(t, "have") {
			if rapid.Bool().Draw(t, "ready") {
				active = append(active, podReady(fmt.Sprint(i), time.Hour))
			} else {
				active = append(active, podPending(fmt.Sprint(i)))
			}
		}
		p := decide(setOf(want), active, active, now)
		if got := len(active) + p.create - len(p.remove); got != int(want) || p.create > 0 && len(p.remove) > 0 {
			t.Fatalf("%d pods after the step, want %d", got, want)
		}
		removed := map[*v1.Pod]bool{}
		worst := false
		for _, r := range p.remove {
			removed[r] = true
			worst = worst || r.Status.Phase == v1.PodRunning
		}
		for _, a := range active {
			if worst && !removed[a] && a.Status.Phase == v1.PodPending {
				t.Fatal("deleted a ready pod and kept a pending one")
			}
		}
	})
}

func TestStatusCountsAndSaysWhenAPodBecomesAvailable(t *testing.T) {
	set := setOf(3)
	set.Spec.MinReadySeconds = 30
	s, next := statusOf(set, []*v1.Pod{podReady("a", time.Minute), podReady("b", 10*time.Second), podPending("c")}, 1, nil, now)
	if s.Replicas != 3 || s.ReadyReplicas != 2 || s.AvailableReplicas != 1 || *s.TerminatingReplicas != 1 || s.ObservedGeneration != 2 {
		t.Fatalf("%+v", s)
	}
	if next != 20*time.Second {
		t.Fatalf("look again in %s, want 20s", next)
	}
}

func TestFailureIsShownOnceAndTakenBack(t *testing.T) {
	set := setOf(3)
	s, _ := statusOf(set, nil, 0, errors.New("quota exceeded"), now)
	if len(s.Conditions) != 1 || s.Conditions[0].Reason != "FailedCreate" || s.Conditions[0].Message != "quota exceeded" {
		t.Fatalf("%+v", s.Conditions)
	}
	set.Status = s
	if again, _ := statusOf(set, nil, 0, errors.New("another"), now.Add(time.Hour)); again.Conditions[0] != s.Conditions[0] {
		t.Fatal("the condition changed without need")
	}
	if healed, _ := statusOf(set, nil, 0, nil, now); len(healed.Conditions) != 0 {
		t.Fatalf("%+v", healed.Conditions)
	}
}

func TestReplicationControllersRoundTrip(t *testing.T) {
	n := int32(2)
	rc := &v1.ReplicationController{
		Spec:   v1.ReplicationControllerSpec{Replicas: &n, Selector: map[string]string{"a": "b"}, Template: &v1.PodTemplateSpec{}},
		Status: v1.ReplicationControllerStatus{Replicas: 2, ReadyReplicas: 1, Conditions: []v1.ReplicationControllerCondition{{Type: "ReplicaFailure", Reason: "x"}}},
	}
	set := fromRC(rc)
	if wanted(set) != 2 || set.Spec.Selector.MatchLabels["a"] != "b" {
		t.Fatalf("%+v", set.Spec)
	}
	if got := toRCStatus(set.Status); got.Replicas != 2 || got.ReadyReplicas != 1 || got.Conditions[0].Reason != "x" {
		t.Fatalf("%+v", got)
	}
}
