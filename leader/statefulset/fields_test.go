package statefulset

import (
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
)

func TestOrdinalsBeginWhereTheSetSays(t *testing.T) {
	set := setOf(2, apps.ParallelPodManagement)
	set.Spec.Ordinals = &apps.StatefulSetOrdinals{Start: 5}
	w := newWorld(set)
	w.step()
	for _, name := range []string{"web-5", "web-6"} {
		if w.pods[name] == nil {
			t.Errorf("there is no %s", name)
		}
	}
	if len(w.pods) != 2 {
		t.Errorf("%d pods", len(w.pods))
	}
}

func TestMinReadySecondsHoldsTheNextPodBack(t *testing.T) {
	set := setOf(2, apps.OrderedReadyPodManagement)
	set.Spec.MinReadySeconds = 30
	w := newWorld(set)
	w.step()
	w.progress(true, nil)
	if p := w.step(); len(p.create) != 0 || p.again == 0 || w.set.Status.ReadyReplicas != 1 || w.set.Status.AvailableReplicas != 0 {
		t.Errorf("ready and not yet available: %+v, %+v", p, w.set.Status)
	}
	w.now = w.now.Add(time.Minute)
	if p := w.step(); len(p.create) != 1 || w.set.Status.AvailableReplicas != 1 || w.set.Status.UpdateRevision != "r0" || w.set.Status.CurrentReplicas != 2 {
		t.Errorf("available: %+v, %+v", p, w.set.Status)
	}
}
