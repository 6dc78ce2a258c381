package pods

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func running(name, node string, ready time.Duration, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-48 * time.Hour))},
		Spec:       v1.PodSpec{NodeName: node},
		Status:     v1.PodStatus{Phase: v1.PodRunning},
	}
	if ready > 0 {
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-ready))}}
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func cost(c string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Annotations = map[string]string{v1.PodDeletionCost: c} }
}

func TestVictims(t *testing.T) {
	best := running("keep", "n1", 24*time.Hour)
	for _, c := range []struct {
		name  string
		first *v1.Pod
	}{
		{"not assigned", running("x", "", 24*time.Hour)},
		{"pending", running("x", "n1", 24*time.Hour, func(p *v1.Pod) { p.Status.Phase = v1.PodPending })},
		{"not ready", running("x", "n1", 0)},
		{"cheaper", running("x", "n1", 24*time.Hour, cost("-1"))},
		{"ready for much shorter", running("x", "n1", time.Minute)},
		{"restarted more", running("x", "n1", 24*time.Hour, func(p *v1.Pod) { p.Status.ContainerStatuses = []v1.ContainerStatus{{RestartCount: 3}} })},
		{"much younger", running("x", "n1", 24*time.Hour, func(p *v1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour)) })},
	} {
		for _, list := range [][]*v1.Pod{{best, c.first}, {c.first, best}} {
			if got := Victims(list, list, 1, now); len(got) != 1 || got[0] != c.first {
				t.Errorf("%s: the wrong one goes", c.name)
			}
		}
	}
}

func TestVictimsComeFromCrowdedNodesFirst(t *testing.T) {
	a, b, alone := running("a", "n1", time.Hour), running("b", "n1", time.Hour), running("z", "n2", time.Hour)
	other := running("o", "n2", time.Hour)
	if got := Victims([]*v1.Pod{alone, a, b}, []*v1.Pod{alone, a, b}, 1, now); got[0] == alone {
		t.Error("the pod that is alone on its node goes first")
	}
	if got := Victims([]*v1.Pod{a, alone}, []*v1.Pod{a, alone, other}, 1, now); got[0] != alone {
		t.Error("related pods of other sets do not count")
	}
}

func TestAvailable(t *testing.T) {
	p := running("p", "n", 10*time.Second)
	if ok, _ := Available(p, 0, now); !ok {
		t.Error("ready pod is not available")
	}
	if ok, wait := Available(p, 30*time.Second, now); ok || wait != 20*time.Second {
		t.Error(ok, wait)
	}
	if ok, wait := Available(running("q", "n", 0), 30*time.Second, now); ok || wait != 0 {
		t.Error("a pod that is not ready has nothing to wait for")
	}
}
