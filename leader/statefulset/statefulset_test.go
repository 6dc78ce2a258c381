package statefulset

import (
	"fmt"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func setOf(n int32, policy apps.PodManagementPolicyType) *apps.StatefulSet {
	return &apps.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "s"}, Spec: apps.StatefulSetSpec{
		Replicas: &n, ServiceName: "web", PodManagementPolicy: policy, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		UpdateStrategy: apps.StatefulSetUpdateStrategy{Type: apps.RollingUpdateStatefulSetStrategyType},
	}}
}

// world is a set with its pods, and what would happen to them.
type world struct {
	set             *apps.StatefulSet
	current, update string
	pods            map[string]*v1.Pod
	made            int
	now             time.Time
}

func newWorld(set *apps.StatefulSet) *world {
	return &world{set: set, current: "r0", update: "r0", pods: map[string]*v1.Pod{}, now: t0}
}

func (w *world) view() view {
	t := &v1.PodTemplateSpec{}
	v := view{set: w.set, current: template{w.current, t}, update: template{w.update, t}, now: w.now}
	for _, p := range w.pods {
		v.pods = append(v.pods, p)
	}
	return v
}

func (w *world) step() plan {
	w.now = w.now.Add(time.Second)
	p := decide(w.view())
	for _, pod := range p.create {
		w.made++
		pod.UID = types.UID(fmt.Sprint(w.made))
		pod.Status.Phase = v1.PodPending
		w.pods[pod.Name] = pod
	}
	for _, pod := range p.remove {
		at := metav1.NewTime(w.now)
		pod.DeletionTimestamp = &at
	}
	w.set = w.set.DeepCopy()
	w.set.Status = statusOf(w.view(), nil)
	w.current = w.set.Status.CurrentRevision
	return p
}

func (w *world) progress(all bool, more func(string) bool) {
	for name, p := range w.pods {
		switch {
		case p.DeletionTimestamp != nil && (all || more("gone")):
			delete(w.pods, name)
		case p.DeletionTimestamp == nil && !(p.Status.Phase == v1.PodRunning) && (all || more("up")):
			p.Status.Phase = v1.PodRunning
			p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.now)}}
		}
	}
}

func (w *world) up(i int) bool {
	p := w.pods[podName(w.set, i)]
	v := w.view()
	return p != nil && v.available(p, &plan{})
}

// An ordered set starts a pod only when all before it are up, has at most one pod on its way in or out by its own doing,
// and arrives, whatever is changed on the way.
func TestOrderedSetsGoOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(setOf(rapid.Int32Range(0, 4).Draw(t, "replicas"), apps.OrderedReadyPodManagement))
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "change") {
			case 0:
				n := rapid.Int32Range(0, 4).Draw(t, "scale")
				w.set.Spec.Replicas = &n
			case 1:
				w.update = fmt.Sprint("r", i)
			}
			before := map[int]bool{}
			for i := range 5 {
				before[i] = w.up(i)
			}
			p := w.step()
			if len(p.create)+len(p.remove) > 1 {
				t.Fatalf("creates %d and deletes %d in one step", len(p.create), len(p.remove))
			}
			for _, pod := range p.create {
				for i := range ordinalOf(w.set, pod) {
					if !before[i] {
						t.Fatalf("creates %s before web-%d is up", pod.Name, i)
					}
				}
			}
			w.progress(false, func(what string) bool { return rapid.Bool().Draw(t, what) })
		}
		for range 60 {
			w.step()
			w.progress(true, nil)
		}
		s := statusOf(w.view(), nil)
		n := int32(replicas(w.set))
		if s.Replicas != n || s.AvailableReplicas != n || s.UpdatedReplicas != n || s.CurrentRevision != w.update && n > 0 {
			t.Fatalf("does not arrive: %+v, want %d of %s", s, n, w.update)
		}
	})
}

func TestParallelSetsStartAtOnce(t *testing.T) {
	w := newWorld(setOf(3, apps.ParallelPodManagement))
	if p := w.step(); len(p.create) != 3 {
		t.Fatalf("%d at once", len(p.create))
	}
}

func TestPartitionHoldsThePodsBelow(t *testing.T) {
	w := newWorld(setOf(3, apps.OrderedReadyPodManagement))
	part := int32(2)
	w.set.Spec.UpdateStrategy.RollingUpdate = &apps.RollingUpdateStatefulSetStrategy{Partition: &part}
	for range 10 {
		w.step()
		w.progress(true, nil)
	}
	w.update = "r1"
	for range 10 {
		w.step()
		w.progress(true, nil)
	}
	for i, want := range []string{"r0", "r0", "r1"} {
		if got := w.pods[podName(w.set, i)].Labels[apps.StatefulSetRevisionLabel]; got != want {
			t.Errorf("web-%d is of %s, want %s", i, got, want)
		}
	}
	delete(w.pods, "web-0") // replaced by one of the old template
	w.step()
	if got := w.pods["web-0"].Labels[apps.StatefulSetRevisionLabel]; got != "r0" {
		t.Errorf("web-0 comes back as %s", got)
	}
}

func TestIdentity(t *testing.T) {
	set := setOf(3, apps.OrderedReadyPodManagement)
	set.Spec.VolumeClaimTemplates = []v1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
	p := newPod(set, &v1.PodTemplateSpec{}, "r", 2)
	if p.Name != "web-2" || p.Spec.Hostname != "web-2" || p.Spec.Subdomain != "web" || p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != "data-web-2" || !identified(p, 2) {
		t.Fatalf("%+v", p)
	}
	for name, want := range map[string]int{"web-0": 0, "web-12": 12, "web-": -1, "web-x": -1, "web-01": -1, "other-1": -1, "web-a-1": -1} {
		if got := ordinalOf(set, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

func TestClaimOwnersFollowTheRetentionPolicy(t *testing.T) {
	const keep, remove = apps.RetainPersistentVolumeClaimRetentionPolicyType, apps.DeletePersistentVolumeClaimRetentionPolicyType
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-5", UID: "p"}}
	for _, c := range []struct {
		deleted, scaled apps.PersistentVolumeClaimRetentionPolicyType
		ordinal         int
		want            string
	}{
		{keep, keep, 0, ""}, {remove, keep, 0, "s"}, {remove, keep, 5, "s"}, {keep, remove, 0, ""}, {keep, remove, 5, "p"}, {remove, remove, 0, "s"}, {remove, remove, 5, "p"},
	} {
		set := setOf(3, apps.OrderedReadyPodManagement)
		set.Spec.PersistentVolumeClaimRetentionPolicy = &apps.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: c.deleted, WhenScaled: c.scaled}
		got := ""
		for _, r := range claimOwners(set, pod, c.ordinal, []metav1.OwnerReference{{UID: "s"}}) {
			got += string(r.UID)
		}
		if got != c.want {
			t.Errorf("%+v: owned by %q", c, got)
		}
	}
}
