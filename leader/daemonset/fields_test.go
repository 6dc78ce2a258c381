package daemonset

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestStatusCountsNodesAndMinReadySecondsDelaysAvailability(t *testing.T) {
	w := &world{ds: setOf(0, 1), nodes: []*v1.Node{nodeNamed("a"), nodeNamed("b")}, hash: "h", now: t0}
	w.ds.Spec.MinReadySeconds, w.ds.Generation = 30, 7
	w.step()
	for _, p := range w.pods {
		w.ready(p)
	}
	s, again := statusOf(w.view())
	if s.DesiredNumberScheduled != 2 || s.CurrentNumberScheduled != 2 || s.NumberReady != 2 || s.NumberAvailable != 0 || s.NumberUnavailable != 2 ||
		s.UpdatedNumberScheduled != 2 || s.NumberMisscheduled != 0 || s.ObservedGeneration != 7 || again != 30*time.Second {
		t.Errorf("ready and not yet available: %+v, again in %v", s, again)
	}
	w.now = w.now.Add(time.Minute)
	w.nodes[1].Labels, w.ds.Spec.Template.Spec.NodeSelector = nil, map[string]string{"name": "a"}
	if s, _ := statusOf(w.view()); s.NumberAvailable != 1 || s.NumberMisscheduled != 1 || s.DesiredNumberScheduled != 1 {
		t.Errorf("one is where it should not be: %+v", s)
	}
}
