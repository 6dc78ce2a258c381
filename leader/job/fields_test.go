package job

import (
	"testing"
	"time"

	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestASuccessPolicyEndsTheJobEarly(t *testing.T) {
	for name, c := range map[string]struct {
		rule batch.SuccessPolicyRule
		done int // how many indexes succeed until the Job has what it wants
	}{
		"SucceededIndexes":                   {batch.SuccessPolicyRule{SucceededIndexes: ptr.To("0")}, 1},
		"SucceededCount":                     {batch.SuccessPolicyRule{SucceededCount: ptr.To[int32](2)}, 2},
		"SucceededCount of SucceededIndexes": {batch.SuccessPolicyRule{SucceededIndexes: ptr.To("1-2"), SucceededCount: ptr.To[int32](1)}, 2},
	} {
		w := &world{j: jobOf(3, 3, 6, batch.IndexedCompletion), now: t0}
		w.j.Spec.SuccessPolicy = &batch.SuccessPolicy{Rules: []batch.SuccessPolicyRule{c.rule}}
		w.step(4)
		for i := range 3 {
			if met := condition(&w.j.Status, batch.JobSuccessCriteriaMet) != nil; met != (i >= c.done) {
				t.Errorf("%s: after %d indexes the criteria are met: %v", name, i, met)
			}
			for _, p := range w.pods {
				if indexOf(p) == i {
					w.finish(p, v1.PodSucceeded)
				}
			}
			w.step(4)
		}
	}
}

func TestPodReplacementPolicyWaitsForTheEnd(t *testing.T) {
	for policy, want := range map[batch.PodReplacementPolicy]int{batch.Failed: 0, batch.TerminatingOrFailed: 1} {
		w := &world{j: jobOf(1, 1, 6, batch.NonIndexedCompletion), now: t0}
		w.j.Spec.PodReplacementPolicy = ptr.To(policy)
		w.step(4)
		at := metav1.NewTime(w.now)
		w.change(w.pods[0].UID, func(p *v1.Pod) { p.DeletionTimestamp = &at })
		made := 0
		for range 3 {
			w.now = w.now.Add(time.Hour)
			made += len(w.step(4).create)
		}
		if made != want {
			t.Errorf("%s: %d pods were made while one was ending, want %d", policy, made, want)
		}
	}
}

func TestMaxFailedIndexesFailsTheJob(t *testing.T) {
	w := &world{j: jobOf(3, 3, 6, batch.IndexedCompletion), now: t0}
	w.j.Spec.BackoffLimitPerIndex, w.j.Spec.MaxFailedIndexes = ptr.To[int32](0), ptr.To[int32](1)
	w.step(4)
	for i := range 2 {
		if c := condition(&w.j.Status, batch.JobFailureTarget); c != nil {
			t.Errorf("after %d failed indexes: %+v", i, c)
		}
		for _, p := range w.pods {
			if indexOf(p) == i {
				w.finish(p, v1.PodFailed)
			}
		}
		w.step(4)
	}
	if c := condition(&w.j.Status, batch.JobFailureTarget); c == nil || c.Reason != batch.JobReasonMaxFailedIndexesExceeded || c.Message == "" || c.LastTransitionTime.IsZero() {
		t.Errorf("%+v", c)
	}
}
