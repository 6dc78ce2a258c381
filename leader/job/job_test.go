package job

import (
	"fmt"
	"slices"
	"testing"
	"time"

	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func jobOf(completions, parallelism, limit int32, mode batch.CompletionMode) *batch.Job {
	return &batch.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "j", UID: "j"},
		Spec: batch.JobSpec{
			Completions: &completions, Parallelism: &parallelism, BackoffLimit: &limit, CompletionMode: &mode,
			Template: v1.PodTemplateSpec{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyNever, Containers: []v1.Container{{Name: "c"}}}},
		},
	}
}

// world is a Job with its pods, and a controller that may stop between any two of its writes.
type world struct {
	j      *batch.Job
	pods   []*v1.Pod
	streak streak
	now    time.Time
	made   int
}

// step makes the first writes of a plan, at most upTo of its four kinds.
func (w *world) step(upTo int) plan {
	w.now = w.now.Add(time.Minute)
	p := decide(view{job: w.j, pods: w.pods, settled: true, streak: w.streak, now: w.now})
	if upTo < 1 {
		return p
	}
	for _, gone := range p.remove {
		at := metav1.NewTime(w.now)
		w.change(gone.UID, func(x *v1.Pod) { x.DeletionTimestamp = &at })
	}
	if upTo < 2 {
		return p
	}
	for _, i := range p.create {
		w.made++
		pod := newPod(w.j, i, p.counts[i])
		pod.UID, pod.CreationTimestamp = types.UID(fmt.Sprint("p", w.made)), metav1.NewTime(w.now)
		pod.Status.Phase = v1.PodRunning
		w.pods = append(w.pods, pod)
	}
	if upTo < 3 {
		return p
	}
	w.j = w.j.DeepCopy()
	w.j.Status = p.status
	w.streak = p.streak
	if upTo < 4 {
		return p
	}
	for _, x := range p.strip {
		w.change(x.UID, func(x *v1.Pod) {
			x.Finalizers = slices.DeleteFunc(slices.Clone(x.Finalizers), func(f string) bool { return f == batch.JobTrackingFinalizer })
		})
	}
	return p
}

func (w *world) change(uid types.UID, f func(*v1.Pod)) {
	for i := range w.pods {
		if w.pods[i].UID == uid {
			w.pods[i] = w.pods[i].DeepCopy()
			f(w.pods[i])
		}
	}
	// A pod on its way out that nothing holds any more is gone.
	w.pods = slices.DeleteFunc(w.pods, func(p *v1.Pod) bool {
		return p.DeletionTimestamp != nil && len(p.Finalizers) == 0 && p.Status.Phase != v1.PodRunning
	})
}

func (w *world) finish(p *v1.Pod, phase v1.PodPhase) {
	w.change(p.UID, func(x *v1.Pod) { x.Status.Phase = phase })
}

func (w *world) running() (out []*v1.Pod) {
	for _, p := range w.pods {
		if p.Status.Phase == v1.PodRunning {
			out = append(out, p)
		}
	}
	return out
}

// However pods end and wherever the controller stops, a Job that completes has counted each of its pods exactly once, has
// run no index twice after it succeeded, and every Job ends.
func TestEveryPodIsCountedExactlyOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mode := rapid.SampledFrom([]batch.CompletionMode{batch.NonIndexedCompletion, batch.IndexedCompletion}).Draw(t, "mode")
		n := rapid.Int32Range(1, 6).Draw(t, "completions")
		limit := rapid.Int32Range(0, 4).Draw(t, "limit")
		w := &world{j: jobOf(n, rapid.Int32Range(1, 4).Draw(t, "parallelism"), limit, mode), now: t0}
		succeeded, failed := int32(0), int32(0)
		chaos := rapid.IntRange(0, 30).Draw(t, "chaos")
		for i := range 400 {
			if _, done := Finished(w.j); done {
				break
			}
			upTo := 4
			if i < chaos {
				upTo = rapid.IntRange(0, 4).Draw(t, "up to")
			}
			w.step(upTo)
			for _, p := range w.running() {
				switch {
				case p.DeletionTimestamp != nil:
					w.finish(p, v1.PodFailed)
					failed++
				case i >= chaos || rapid.IntRange(0, 2).Draw(t, "end") > 0:
					if i < chaos && rapid.IntRange(0, 3).Draw(t, "how") == 0 {
						w.finish(p, v1.PodFailed)
						failed++
					} else {
						w.finish(p, v1.PodSucceeded)
						succeeded++
					}
				}
			}
		}
		how, done := Finished(w.j)
		s := w.j.Status
		if !done || s.Active != 0 || len(s.UncountedTerminatedPods.Failed)+len(s.UncountedTerminatedPods.Succeeded) != 0 {
			t.Fatalf("not ended: %+v", s)
		}
		if s.Failed != failed || mode == batch.NonIndexedCompletion && s.Succeeded != succeeded {
			t.Fatalf("counted %d and %d, were %d succeeded and %d failed", s.Succeeded, s.Failed, succeeded, failed)
		}
		if how == batch.JobComplete && s.Succeeded < n || how == batch.JobFailed && s.Failed <= limit {
			t.Fatalf("%s with %d of %d, %d failures of %d allowed", how, s.Succeeded, n, s.Failed, limit)
		}
		for _, p := range w.pods {
			if tracked(p) {
				t.Fatalf("pod %s is still held", p.UID)
			}
		}
	})
}

func TestIndexesAsText(t *testing.T) {
	for _, c := range []string{"", "0", "0,2", "0-2", "1,3-5,7", "0,1", "2-9"} {
		if got := parseIndexes(c, 10).String(); got != c {
			t.Errorf("%q became %q", c, got)
		}
	}
	if got := parseIndexes("0-99,x,-1,7", 5).String(); got != "0-4" {
		t.Errorf("%q", got)
	}
}

func TestSuspendedJobsRunNothing(t *testing.T) {
	w := &world{j: jobOf(3, 3, 6, batch.NonIndexedCompletion), now: t0}
	w.step(4)
	yes, no := true, false
	w.j.Spec.Suspend = &yes
	if p := w.step(4); len(p.remove) != 3 || p.status.StartTime != nil || condition(&p.status, batch.JobSuspended) == nil {
		t.Fatalf("%+v", p)
	}
	for _, p := range w.running() {
		w.finish(p, v1.PodSucceeded)
	}
	w.j.Spec.Suspend = &no
	if p := w.step(4); p.status.StartTime == nil || condition(&p.status, batch.JobSuspended) != nil {
		t.Fatalf("%+v", p.status)
	}
}

func TestDeadlineEndsTheJob(t *testing.T) {
	w := &world{j: jobOf(1, 1, 6, batch.NonIndexedCompletion), now: t0}
	seconds := int64(90)
	w.j.Spec.ActiveDeadlineSeconds = &seconds
	if p := w.step(4); p.again != 90*time.Second {
		t.Fatalf("look again in %s", p.again)
	}
	w.step(4) // one minute later
	if p := w.step(4); len(p.remove) != 1 || condition(&p.status, batch.JobFailureTarget).Reason != batch.JobReasonDeadlineExceeded {
		t.Fatalf("%+v", p)
	}
}

func TestBackoffDoubles(t *testing.T) {
	for n, want := range map[int]time.Duration{0: 0, 1: 10 * time.Second, 2: 20 * time.Second, 5: 160 * time.Second, 20: 10 * time.Minute} {
		if got := (streak{failures: n, last: t0}).wait(t0); got != want {
			t.Errorf("%d failures: %s, want %s", n, got, want)
		}
	}
}

func TestFailurePolicy(t *testing.T) {
	exit := func(code int32) *v1.Pod {
		return &v1.Pod{Status: v1.PodStatus{Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{{Name: "c", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code}}}}}}
	}
	j := jobOf(1, 1, 6, batch.NonIndexedCompletion)
	j.Spec.PodFailurePolicy = &batch.PodFailurePolicy{Rules: []batch.PodFailurePolicyRule{
		{Action: batch.PodFailurePolicyActionFailJob, OnExitCodes: &batch.PodFailurePolicyOnExitCodesRequirement{Operator: batch.PodFailurePolicyOnExitCodesOpIn, Values: []int32{42}}},
		{Action: batch.PodFailurePolicyActionIgnore, OnPodConditions: []batch.PodFailurePolicyOnPodConditionsPattern{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue}}},
	}}
	if v := judge(j, exit(42)); v.failJob == "" {
		t.Errorf("%+v", v)
	}
	if v := judge(j, exit(1)); !v.counts || v.failJob != "" {
		t.Errorf("%+v", v)
	}
	disrupted := exit(1)
	disrupted.Status.Conditions = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue}}
	if v := judge(j, disrupted); v.counts {
		t.Errorf("%+v", v)
	}
}

func TestBackoffPerIndexFailsOnlyThatIndex(t *testing.T) {
	w := &world{j: jobOf(2, 2, 100, batch.IndexedCompletion), now: t0}
	zero := int32(0)
	w.j.Spec.BackoffLimitPerIndex = &zero
	w.step(4)
	for _, p := range w.running() {
		if indexOf(p) == 0 {
			w.finish(p, v1.PodFailed)
		} else {
			w.finish(p, v1.PodSucceeded)
		}
	}
	for range 5 {
		w.step(4)
	}
	how, _ := Finished(w.j)
	if how != batch.JobFailed || *w.j.Status.FailedIndexes != "0" || w.j.Status.CompletedIndexes != "1" || w.made != 2 {
		t.Fatalf("%s %+v, %d pods", how, w.j.Status, w.made)
	}
}
