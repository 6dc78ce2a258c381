package daemonset

import (
	"fmt"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func setOf(surge, unavailable int32) *apps.DaemonSet {
	s, u := intstr.FromInt32(surge), intstr.FromInt32(unavailable)
	return &apps.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "d"}, Spec: apps.DaemonSetSpec{
		UpdateStrategy: apps.DaemonSetUpdateStrategy{Type: apps.RollingUpdateDaemonSetStrategyType, RollingUpdate: &apps.RollingUpdateDaemonSet{MaxSurge: &s, MaxUnavailable: &u}},
	}}
}

func nodeNamed(name string, taints ...v1.Taint) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}, Spec: v1.NodeSpec{Taints: taints}}
}

func TestFits(t *testing.T) {
	taint := func(key string, e v1.TaintEffect) v1.Taint { return v1.Taint{Key: key, Effect: e} }
	plain, picky := setOf(0, 1), setOf(0, 1)
	picky.Spec.Template.Spec.NodeSelector = map[string]string{"name": "b"}
	for _, c := range []struct {
		name      string
		ds        *apps.DaemonSet
		node      *v1.Node
		run, stay bool
	}{
		{"plain", plain, nodeNamed("a"), true, true},
		{"selector", picky, nodeNamed("a"), false, false},
		{"selector that matches", picky, nodeNamed("b"), true, true},
		{"taint against new pods", plain, nodeNamed("a", taint("x", v1.TaintEffectNoSchedule)), false, true},
		{"taint against all pods", plain, nodeNamed("a", taint("x", v1.TaintEffectNoExecute)), false, false},
		{"not ready", plain, nodeNamed("a", taint(v1.TaintNodeNotReady, v1.TaintEffectNoExecute)), true, true},
		{"cordoned", plain, nodeNamed("a", taint(v1.TaintNodeUnschedulable, v1.TaintEffectNoSchedule)), true, true},
	} {
		if run, stay := fits(c.ds, c.node); run != c.run || stay != c.stay {
			t.Errorf("%s: run %v stay %v", c.name, run, stay)
		}
	}
}

func TestNewPodsAreMeantForOneNode(t *testing.T) {
	p := newPod(setOf(0, 1), "n7", "hash")
	if nodeOf(p) != "n7" || p.Labels[apps.ControllerRevisionHashLabelKey] != "hash" || len(p.Spec.Tolerations) != len(daemonTolerations) {
		t.Fatalf("%+v", p)
	}
}

// world is a DaemonSet on some nodes, and what would happen there.
type world struct {
	ds    *apps.DaemonSet
	nodes []*v1.Node
	pods  []*v1.Pod
	hash  string
	made  int
	now   time.Time
}

func (w *world) view() view {
	return view{ds: w.ds, nodes: w.nodes, pods: byNode(w.pods), hash: w.hash, now: w.now, retry: func(string) time.Duration { return 0 }}
}

func (w *world) step() plan {
	w.now = w.now.Add(time.Second)
	p := decide(w.view())
	for _, n := range p.create {
		w.made++
		pod := newPod(w.ds, n, w.hash)
		pod.Name, pod.UID, pod.CreationTimestamp = fmt.Sprint(w.made), types.UID(fmt.Sprint(w.made)), metav1.NewTime(w.now)
		pod.Spec.NodeName = n
		w.pods = append(w.pods, pod)
	}
	for _, gone := range p.remove {
		for i := range w.pods {
			if w.pods[i].UID == gone.UID {
				w.pods = append(w.pods[:i:i], w.pods[i+1:]...)
				break
			}
		}
	}
	return p
}

func (w *world) ready(p *v1.Pod) {
	p.Status.Phase = v1.PodRunning
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.now)}}
}

func (w *world) down() int {
	v := w.view()
	up := map[string]bool{}
	for _, p := range w.pods {
		if v.available(p) {
			up[p.Spec.NodeName] = true
		}
	}
	return len(w.nodes) - len(up)
}

// A rolling update never takes more nodes down than allowed, never runs more extra pods than allowed, and ends.
func TestRollingUpdatesKeepTheirLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		surge := rapid.Int32Range(0, 3).Draw(t, "surge")
		unavailable := rapid.Int32Range(1, 3).Draw(t, "unavailable")
		if surge > 0 {
			unavailable = 0
		}
		w := &world{ds: setOf(surge, unavailable), hash: "v0", now: t0}
		for i := range rapid.IntRange(1, 8).Draw(t, "nodes") {
			w.nodes = append(w.nodes, nodeNamed(fmt.Sprint("n", i)))
		}
		w.step()
		for _, p := range w.pods {
			w.ready(p)
		}
		w.hash = "v1"
		for range 200 {
			w.step()
			if d := w.down(); d > int(unavailable) {
				t.Fatalf("%d nodes down, %d allowed", d, unavailable)
			}
			if extra := len(w.pods) - len(w.nodes); extra > int(surge) {
				t.Fatalf("%d extra pods, %d allowed", extra, surge)
			}
			for _, p := range w.pods {
				if rapid.Bool().Draw(t, "comes up") {
					w.ready(p)
				}
			}
		}
		for range 3 * len(w.nodes) * 2 {
			w.step()
			for _, p := range w.pods {
				w.ready(p)
			}
		}
		s, _ := statusOf(w.view())
		if int(s.UpdatedNumberScheduled) != len(w.nodes) || int(s.NumberAvailable) != len(w.nodes) || len(w.pods) != len(w.nodes) {
			t.Fatalf("does not end: %+v", s)
		}
	})
}

func TestFailedPodsAreReplacedAtTheirPace(t *testing.T) {
	w := &world{ds: setOf(0, 1), nodes: []*v1.Node{nodeNamed("a")}, hash: "v", now: t0}
	w.step()
	w.pods[0].Status.Phase = v1.PodFailed
	v := w.view()
	v.retry = func(string) time.Duration { return 7 * time.Second }
	if p := decide(v); len(p.remove) != 0 || p.again != 7*time.Second {
		t.Fatalf("%+v", p)
	}
	v.retry = func(string) time.Duration { return 0 }
	if p := decide(v); len(p.remove) != 1 {
		t.Fatalf("%+v", p)
	}
}
