package realtest

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestPodRunsAndGoes(t *testing.T) {
	m := newMachine(t)
	began := time.Now()
	p := m.pod("a", nil)
	got := m.awaitReady("a")
	t.Logf("ready after %v", time.Since(began))
	if got.Status.PodIP == "" || got.Status.Phase != v1.PodRunning {
		t.Fatalf("status: %+v", got.Status)
	}
	for i := range 5 {
		name := string(rune('b' + i))
		began := time.Now()
		m.pod(name, nil)
		m.awaitReady(name)
		t.Logf("%s ready after %v", name, time.Since(began))
	}
	began = time.Now()
	m.deletePod("a")
	m.await("a", "gone", func(p *v1.Pod) bool { return p == nil })
	t.Logf("gone after %v", time.Since(began))
	m.awaitNothing(p.UID)
}
