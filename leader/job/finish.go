package job

import (
	"time"

	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/leader/pods"
)

// target is the outcome a Job heads for: FailureTarget or SuccessCriteriaMet, with reason and message.
func (r *round) target() *batch.JobCondition {
	if c := condition(r.s, batch.JobSuccessCriteriaMet); c != nil {
		return c
	}
	if c := condition(r.s, batch.JobFailureTarget); c != nil {
		return c
	}
	fail := func(reason, message string) *batch.JobCondition {
		return r.newCondition(batch.JobFailureTarget, reason, message)
	}
	switch {
	case r.fatal != "":
		return fail(batch.JobReasonPodFailurePolicy, r.fatal)
	case r.lost > backoffLimit(r.job) || r.restartedTooOften():
		return fail(batch.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	case r.overdue():
		return fail(batch.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
	}
	if perIndex(r.job) {
		bad := len(r.failed)
		switch {
		case r.job.Spec.MaxFailedIndexes != nil && bad > int(*r.job.Spec.MaxFailedIndexes):
			return fail(batch.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes")
		case bad > 0 && bad+len(r.done) >= int(completions(r.job)):
			return fail(batch.JobReasonFailedIndexes, "Job has failed indexes")
		}
	}
	if message, ok := enough(r.job, r.done); ok {
		return r.newCondition(batch.JobSuccessCriteriaMet, batch.JobReasonSuccessPolicy, message)
	}
	return nil
}

func backoffLimit(j *batch.Job) int32 {
	if j.Spec.BackoffLimit == nil {
		return 6
	}
	return *j.Spec.BackoffLimit
}

func (r *round) newCondition(t batch.JobConditionType, reason, message string) *batch.JobCondition {
	at := metav1.NewTime(r.now)
	return &batch.JobCondition{Type: t, Status: v1.ConditionTrue, Reason: reason, Message: message, LastProbeTime: at, LastTransitionTime: at}
}

// restartedTooOften counts restarts in place, where pods restart instead of failing.
func (r *round) restartedTooOften() bool {
	if r.job.Spec.Template.Spec.RestartPolicy != v1.RestartPolicyOnFailure {
		return false
	}
	n := int32(0)
	for _, p := range r.active {
		for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for i := range list {
				n += list[i].RestartCount
			}
		}
	}
	if backoffLimit(r.job) == 0 {
		return n > 0
	}
	return n >= backoffLimit(r.job)
}

func (r *round) overdue() bool {
	if r.job.Spec.ActiveDeadlineSeconds == nil || r.s.StartTime == nil || suspended(r.job) {
		return false
	}
	left := r.s.StartTime.Add(time.Duration(*r.job.Spec.ActiveDeadlineSeconds) * time.Second).Sub(r.now)
	r.later(left)
	return left <= 0
}

// end brings the Job to its outcome when it has one, or else keeps the right number of pods running.
func (r *round) end() {
	target := r.target()
	if target == nil {
		if r.settled && r.job.DeletionTimestamp == nil {
			r.manage()
			r.noteSuspension()
		}
		if r.reached() {
			target = r.newCondition(batch.JobSuccessCriteriaMet, batch.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
		}
	} else if r.settled {
		r.out.remove = r.active
	}
	r.stock()
	if target == nil {
		return
	}
	if condition(r.s, target.Type) == nil {
		r.s.Conditions = append(r.s.Conditions, *target)
	}
	r.conclude(target)
}

// reached reports whether the completions asked for are there and nothing runs any more.
func (r *round) reached() bool {
	if len(r.active) > 0 || !r.settled || len(r.out.create) > 0 {
		return false
	}
	if r.job.Spec.Completions == nil {
		return r.succeeded > 0
	}
	return r.succeeded >= *r.job.Spec.Completions
}

// stock writes down how many pods there are, counting those this round deletes and creates.
func (r *round) stock() {
	removed := map[*v1.Pod]bool{}
	for _, p := range r.out.remove {
		removed[p] = true
	}
	ready, terminating := int32(0), int32(len(removed))
	r.s.Active = int32(len(r.out.create))
	for _, p := range r.pods {
		switch {
		case pods.Active(p) && !removed[p]:
			r.s.Active++
			if pods.Ready(p) {
				ready++
			}
		case p.DeletionTimestamp != nil && !pods.Terminal(p):
			terminating++
		}
	}
	r.s.Ready, r.s.Terminating = &ready, &terminating
}

// conclude ends the Job once its last pod has ended and every one is counted.
func (r *round) conclude(target *batch.JobCondition) {
	u := r.s.UncountedTerminatedPods
	if !r.settled || r.s.Active > 0 || *r.s.Terminating > 0 || len(u.Succeeded)+len(u.Failed) > 0 || len(r.out.strip) > 0 {
		return
	}
	final := *target
	final.LastTransitionTime, final.LastProbeTime = metav1.NewTime(r.now), metav1.NewTime(r.now)
	if target.Type == batch.JobSuccessCriteriaMet {
		final.Type = batch.JobComplete
		at := metav1.NewTime(r.now)
		r.s.CompletionTime = &at
		r.out.events = append(r.out.events, event{v1.EventTypeNormal, "Completed", "Job completed"})
	} else {
		final.Type = batch.JobFailed
		r.out.events = append(r.out.events, event{v1.EventTypeWarning, final.Reason, final.Message})
	}
	r.s.Conditions = append(r.s.Conditions, final)
}

// noteSuspension keeps the Suspended condition; a Job that resumes starts its clock anew.
func (r *round) noteSuspension() {
	at := metav1.NewTime(r.now)
	c := batch.JobCondition{Type: batch.JobSuspended, LastProbeTime: at, LastTransitionTime: at}
	if suspended(r.job) {
		c.Status, c.Reason, c.Message = v1.ConditionTrue, "JobSuspended", "Job suspended"
	} else {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, "JobResumed", "Job resumed"
	}
	for i := range r.s.Conditions {
		have := &r.s.Conditions[i]
		if have.Type != c.Type {
			continue
		}
		if have.Status != c.Status {
			*have = c
			r.switched(at)
		}
		return
	}
	if suspended(r.job) {
		r.s.Conditions = append(r.s.Conditions, c)
		r.switched(at)
	}
}

func (r *round) switched(at metav1.Time) {
	if suspended(r.job) {
		r.s.StartTime = nil
		r.out.events = append(r.out.events, event{v1.EventTypeNormal, "Suspended", "Job suspended"})
		return
	}
	r.s.StartTime = &at
	r.out.events = append(r.out.events, event{v1.EventTypeNormal, "Resumed", "Job resumed"})
}
