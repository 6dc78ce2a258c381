package disruption

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestGoal(t *testing.T) {
	number, percent := func(n int32) *intstr.IntOrString { v := intstr.FromInt32(n); return &v }, func(s string) *intstr.IntOrString { v := intstr.FromString(s); return &v }
	for _, c := range []struct {
		name                   string
		spec                   policy.PodDisruptionBudgetSpec
		matching, scale        int32
		expected, healthy, may int32
	}{
		{"min number", policy.PodDisruptionBudgetSpec{MinAvailable: number(2)}, 3, 0, 3, 2, 1},
		{"min number above all", policy.PodDisruptionBudgetSpec{MinAvailable: number(5)}, 3, 0, 3, 5, 0},
		{"min percent rounds up", policy.PodDisruptionBudgetSpec{MinAvailable: percent("50%")}, 3, 5, 5, 3, 0},
		{"max number", policy.PodDisruptionBudgetSpec{MaxUnavailable: number(1)}, 3, 3, 3, 2, 1},
		{"max above all", policy.PodDisruptionBudgetSpec{MaxUnavailable: number(9)}, 3, 3, 3, 0, 3},
		{"max percent rounds up", policy.PodDisruptionBudgetSpec{MaxUnavailable: percent("30%")}, 3, 3, 3, 2, 1},
		{"no pods yet", policy.PodDisruptionBudgetSpec{MaxUnavailable: number(1)}, 0, 0, 0, 0, 0},
	} {
		expected, healthy, err := goal(&policy.PodDisruptionBudget{Spec: c.spec}, c.matching, c.scale)
		if may := allowed(expected, healthy, c.matching); err != nil || expected != c.expected || healthy != c.healthy || may != c.may {
			t.Errorf("%s: expected %d healthy %d allowed %d, %v", c.name, expected, healthy, may, err)
		}
	}
}

func TestEvictionsUnderWayDoNotCountAsHealthyUntilTheyTimeOut(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pod := func(name string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}}}
	}
	b := &policy.PodDisruptionBudget{Status: policy.PodDisruptionBudgetStatus{DisruptedPods: map[string]metav1.Time{
		"a": metav1.NewTime(now.Add(-30 * time.Second)), "b": metav1.NewTime(now.Add(-time.Hour)), "gone": metav1.NewTime(now),
	}}}
	list := []*v1.Pod{pod("a"), pod("b"), pod("c")}
	evicted, next := underWay(b, list, now)
	if len(evicted) != 1 || next != 90*time.Second || countHealthy(list, evicted) != 2 {
		t.Fatal(evicted, next)
	}
}
