package job

import (
	"slices"
	"strconv"
	"time"

	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/leader/pods"
)

const (
	// burst bounds how many pods one reconcile creates or deletes, and how many it counts.
	burst = 500
	// firstBackoff and lastBackoff bound the wait after failures, doubled with each.
	firstBackoff = 10 * time.Second
	lastBackoff  = 10 * time.Minute
	// failureCount is the annotation that tells how often an index had failed when the pod was made.
	failureCount = batch.JobIndexFailureCountAnnotation
)

// view is all a decision looks at.
type view struct {
	job     *batch.Job
	pods    []*v1.Pod // it controls
	settled bool      // the pods include all we created and exclude all we deleted
	streak  streak    // failures in a row so far
	now     time.Time
}

// streak is how often pods of a Job failed since one last succeeded, and when that was.
type streak struct {
	failures int
	last     time.Time
}

// plan is the set of actions of one reconcile, in this order: pods are deleted and created, the status is written, finalizers
// are removed.
type plan struct {
	remove []*v1.Pod
	create []int       // an index each; -1 in a Job that is not indexed
	counts map[int]int // failures so far, for indexes in create
	status batch.JobStatus
	strip  []*v1.Pod
	streak streak
	events []event
	again  time.Duration
}

type event struct{ kind, reason, message string }

// round carries the working state of one decision.
type round struct {
	view
	out       plan
	s         *batch.JobStatus
	active    []*v1.Pod
	done      indexes // indexes that succeeded
	failed    indexes // indexes that failed for good
	failures  map[int]int
	lastFail  map[int]time.Time
	succeeded int32
	lost      int32
	fatal     string // a pod failure policy fails the Job
}

func indexed(j *batch.Job) bool {
	return j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batch.IndexedCompletion
}

func perIndex(j *batch.Job) bool { return indexed(j) && j.Spec.BackoffLimitPerIndex != nil }

func suspended(j *batch.Job) bool { return j.Spec.Suspend != nil && *j.Spec.Suspend }

// onlyFailed: a pod on its way out is replaced when it has ended, not when it starts to end.
func onlyFailed(j *batch.Job) bool {
	return j.Spec.PodReplacementPolicy != nil && *j.Spec.PodReplacementPolicy == batch.Failed
}

func completions(j *batch.Job) int32 {
	if j.Spec.Completions == nil {
		return 0
	}
	return *j.Spec.Completions
}

func indexOf(p *v1.Pod) int {
	n, err := strconv.Atoi(p.Annotations[batch.JobCompletionIndexAnnotation])
	if err != nil || n < 0 {
		return -1
	}
	return n
}

func tracked(p *v1.Pod) bool { return slices.Contains(p.Finalizers, batch.JobTrackingFinalizer) }

func failedPod(j *batch.Job, p *v1.Pod) bool {
	if p.Status.Phase == v1.PodFailed {
		return true
	}
	return p.DeletionTimestamp != nil && p.Status.Phase != v1.PodSucceeded && !onlyFailed(j)
}

func condition(s *batch.JobStatus, t batch.JobConditionType) *batch.JobCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t && s.Conditions[i].Status == v1.ConditionTrue {
			return &s.Conditions[i]
		}
	}
	return nil
}

// Finished reports whether the Job has ended, and how.
func Finished(j *batch.Job) (batch.JobConditionType, bool) {
	for _, t := range []batch.JobConditionType{batch.JobComplete, batch.JobFailed} {
		if condition(&j.Status, t) != nil {
			return t, true
		}
	}
	return "", false
}

// decide works out the next step of a Job that has not ended.
func decide(v view) plan {
	r := &round{view: v, failures: map[int]int{}, lastFail: map[int]time.Time{}}
	r.out.status = *v.job.Status.DeepCopy()
	r.out.streak = v.streak
	r.s = &r.out.status
	r.start()
	r.settleCounts()
	r.countIndexes()
	r.count()
	r.end()
	return r.out
}

func (r *round) start() {
	if r.s.UncountedTerminatedPods == nil {
		r.s.UncountedTerminatedPods = &batch.UncountedTerminatedPods{}
	}
	if r.s.StartTime == nil && !suspended(r.job) {
		at := metav1.NewTime(r.now)
		r.s.StartTime = &at
	}
	for _, p := range r.pods {
		if pods.Active(p) {
			r.active = append(r.active, p)
		}
	}
}

// settleCounts makes the UIDs of pods whose finalizer is off, or that are gone, part of the counts.
func (r *round) settleCounts() {
	held := map[types.UID]bool{}
	for _, p := range r.pods {
		if tracked(p) {
			held[p.UID] = true
		}
	}
	settle := func(uids []types.UID, count *int32) (left []types.UID) {
		for _, uid := range uids {
			if held[uid] {
				left = append(left, uid)
			} else {
				*count++
			}
		}
		return left
	}
	u := r.s.UncountedTerminatedPods
	u.Succeeded = settle(u.Succeeded, &r.s.Succeeded)
	u.Failed = settle(u.Failed, &r.s.Failed)
}

// countIndexes takes stock of the indexes that are done for good.
func (r *round) countIndexes() {
	if !indexed(r.job) {
		return
	}
	limit := int(completions(r.job))
	r.done = parseIndexes(r.s.CompletedIndexes, limit)
	r.failed = indexes{}
	if r.s.FailedIndexes != nil {
		r.failed = parseIndexes(*r.s.FailedIndexes, limit)
	}
	for _, p := range r.pods {
		i := indexOf(p)
		if i < 0 || i >= limit {
			continue
		}
		switch {
		case p.Status.Phase == v1.PodSucceeded && tracked(p):
			r.done[i] = true
		case failedPod(r.job, p) && perIndex(r.job):
			r.indexFailed(p, i)
		}
	}
	for i := range r.failed {
		if r.done[i] {
			delete(r.failed, i)
		}
	}
}

func (r *round) indexFailed(p *v1.Pod, i int) {
	how := judge(r.job, p)
	before, _ := strconv.Atoi(p.Annotations[failureCount])
	now := before
	if how.counts {
		now++
	}
	r.failures[i] = max(r.failures[i], now)
	if at := endedAt(p); at.After(r.lastFail[i]) {
		r.lastFail[i] = at
	}
	if how.failIdx || now > int(*r.job.Spec.BackoffLimitPerIndex) {
		r.failed[i] = true
	}
}

// endedAt is when the last container of a pod ended.
func endedAt(p *v1.Pod) time.Time {
	var last time.Time
	for i := range p.Status.ContainerStatuses {
		if t := p.Status.ContainerStatuses[i].State.Terminated; t != nil && t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
	}
	if last.IsZero() && p.DeletionTimestamp != nil {
		last = p.DeletionTimestamp.Time
	}
	if c := pods.Condition(p, v1.PodReady); last.IsZero() && c != nil {
		last = c.LastTransitionTime.Time
	}
	if last.IsZero() {
		last = p.CreationTimestamp.Time
	}
	return last
}

// count adds what has ended since the last time to the status, in one step with the decision to let the pods go.
func (r *round) count() {
	u := r.s.UncountedTerminatedPods
	leaving := r.job.DeletionTimestamp != nil
	for _, p := range r.pods {
		if !tracked(p) {
			continue
		}
		counted := slices.Contains(u.Succeeded, p.UID) || slices.Contains(u.Failed, p.UID)
		switch {
		case counted:
		case p.Status.Phase == v1.PodSucceeded:
			r.out.streak = streak{}
			if !indexed(r.job) {
				u.Succeeded = append(u.Succeeded, p.UID)
			}
		case failedPod(r.job, p):
			r.fail(p)
		case leaving:
		default:
			continue
		}
		r.out.strip = append(r.out.strip, p)
	}
	r.succeeded = r.s.Succeeded + int32(len(u.Succeeded))
	if indexed(r.job) {
		r.succeeded = int32(len(r.done))
		r.s.Succeeded, r.s.CompletedIndexes = r.succeeded, r.done.String()
		if perIndex(r.job) {
			text := r.failed.String()
			r.s.FailedIndexes = &text
		}
	}
	r.lost = r.s.Failed + int32(len(u.Failed))
}

func (r *round) fail(p *v1.Pod) {
	if i := indexOf(p); indexed(r.job) && (i < 0 || i >= int(completions(r.job))) {
		return
	}
	how := judge(r.job, p)
	if how.failJob != "" && r.fatal == "" {
		r.fatal = how.failJob
	}
	if !how.counts {
		return
	}
	r.s.UncountedTerminatedPods.Failed = append(r.s.UncountedTerminatedPods.Failed, p.UID)
	r.out.streak.failures++
	if at := endedAt(p); at.After(r.out.streak.last) {
		r.out.streak.last = at
	}
}

// later asks for another look.
func (r *round) later(d time.Duration) {
	if d > 0 && (r.out.again == 0 || d < r.out.again) {
		r.out.again = d
	}
}
