package cronjob

import (
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/robfig/cron/v3"
	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/leader/job"
)

// slack is added to the wait for the next start, so that the clock has surely passed it.
const slack = 100 * time.Millisecond

// manyMissed is how many missed starts are worth a warning.
const manyMissed = 100

var errNeverRuns = errors.New("schedule never comes due")

// parse reads a schedule in its time zone. A schedule that makes the library panic is an error like any other.
func parse(c *batch.CronJob) (s cron.Schedule, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule %q: %v", c.Spec.Schedule, r)
		}
	}()
	text := c.Spec.Schedule
	if c.Spec.TimeZone != nil {
		text = fmt.Sprintf("TZ=%s %s", *c.Spec.TimeZone, text)
	}
	return cron.ParseStandard(text)
}

// due finds the latest start that should have happened by now and how many have passed in all. The time is zero when none
// has. Starts older than the deadline do not count when bounded is set.
func due(c *batch.CronJob, s cron.Schedule, now time.Time, bounded bool) (latest time.Time, missed int64, err error) {
	from := c.CreationTimestamp.Time
	if c.Status.LastScheduleTime != nil {
		from = c.Status.LastScheduleTime.Time
	}
	if d := c.Spec.StartingDeadlineSeconds; d != nil && bounded {
		if limit := now.Add(-time.Duration(*d) * time.Second); limit.After(from) {
			from = limit
		}
	}
	first := s.Next(from)
	if first.IsZero() {
		return time.Time{}, 0, errNeverRuns
	}
	if now.Before(first) {
		return time.Time{}, 0, nil
	}
	second := s.Next(first)
	if second.IsZero() || now.Before(second) {
		return first, 1, nil
	}
	every := second.Sub(first).Round(time.Second)
	if every < time.Second {
		return time.Time{}, 0, errNeverRuns
	}
	// Jump close to now by the first interval, then step: intervals may differ.
	missed = int64(now.Sub(first)/every) + 1
	latest = first
	for t := s.Next(first.Add(time.Duration(missed-2) * every)); !t.IsZero() && !t.After(now); t = s.Next(t) {
		latest = t
	}
	return latest, missed, nil
}

// nextStart is how long to wait for the start after latest, or after now when latest is long gone.
func nextStart(c *batch.CronJob, s cron.Schedule, now time.Time) time.Duration {
	next := s.Next(now)
	if next.IsZero() {
		return 0
	}
	return max(0, next.Sub(now)) + slack
}

// verdict is the action that the schedule demands now.
type verdict struct {
	start  time.Time // make the Job of this start; zero: none
	end    []v1.ObjectReference
	event  string // reason, with message, of what is not done
	detail string
	kind   string
}

// judge decides whether a Job starts now. active are the Jobs that still run.
func judge(c *batch.CronJob, s cron.Schedule, now time.Time) (verdict, error) {
	at, missed, err := due(c, s, now, true)
	if err != nil || at.IsZero() {
		return verdict{}, err
	}
	last := c.Status.LastScheduleTime
	if last != nil && !last.Time.Before(at) || listedByName(c, jobName(c, at)) {
		return verdict{}, nil
	}
	if d := c.Spec.StartingDeadlineSeconds; d != nil && at.Add(time.Duration(*d)*time.Second).Before(now) {
		return verdict{kind: v1.EventTypeWarning, event: "MissSchedule", detail: "Missed scheduled time to start a job: " + at.UTC().Format(time.RFC1123Z)}, nil
	}
	v := verdict{start: at}
	if missed > manyMissed {
		v.kind, v.event, v.detail = v1.EventTypeWarning, "TooManyMissedTimes",
			fmt.Sprintf("too many missed start times: %d. Set or decrease .spec.startingDeadlineSeconds or check clock skew", missed)
	}
	if len(c.Status.Active) == 0 {
		return v, nil
	}
	switch c.Spec.ConcurrencyPolicy {
	case batch.ForbidConcurrent:
		return verdict{kind: v1.EventTypeNormal, event: "JobAlreadyActive", detail: "Not starting job because prior execution is running and concurrency policy is Forbid"}, nil
	case batch.ReplaceConcurrent:
		v.end = c.Status.Active
	}
	return v, nil
}

func listedByName(c *batch.CronJob, name string) bool {
	for _, r := range c.Status.Active {
		if r.Name == name {
			return true
		}
	}
	return false
}

func listed(c *batch.CronJob, uid types.UID) bool {
	for _, r := range c.Status.Active {
		if r.UID == uid {
			return true
		}
	}
	return false
}

// jobName names the Job of a start, in minutes, so that no start can ever make two.
func jobName(c *batch.CronJob, start time.Time) string {
	return fmt.Sprintf("%s-%d", c.Name, start.Unix()/60)
}

// newJob builds the Job of a start.
func newJob(c *batch.CronJob, start time.Time) *batch.Job {
	t := c.Spec.JobTemplate.DeepCopy()
	j := &batch.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: jobName(c, start), Labels: t.Labels, Annotations: t.Annotations,
			CreationTimestamp: metav1.NewTime(start),
			OwnerReferences:   []metav1.OwnerReference{*metav1.NewControllerRef(c, controllerKind)},
		},
		Spec: t.Spec,
	}
	if j.Annotations == nil {
		j.Annotations = map[string]string{}
	}
	at := start
	if c.Spec.TimeZone != nil {
		if zone, err := time.LoadLocation(*c.Spec.TimeZone); err == nil {
			at = start.In(zone)
		}
	}
	j.Annotations[batch.CronJobScheduledTimestampAnnotation] = at.Format(time.RFC3339)
	return j
}

// surplus are the ended Jobs beyond the history limits, oldest first.
func surplus(c *batch.CronJob, jobs []*batch.Job) []*batch.Job {
	var good, bad []*batch.Job
	for _, j := range jobs {
		switch t, done := job.Finished(j); {
		case done && t == batch.JobComplete:
			good = append(good, j)
		case done:
			bad = append(bad, j)
		}
	}
	return append(oldest(good, c.Spec.SuccessfulJobsHistoryLimit), oldest(bad, c.Spec.FailedJobsHistoryLimit)...)
}

func oldest(jobs []*batch.Job, keep *int32) []*batch.Job {
	if keep == nil || len(jobs) <= int(*keep) {
		return nil
	}
	sort.Slice(jobs, func(i, j int) bool {
		a, b := jobs[i].Status.StartTime, jobs[j].Status.StartTime
		if a == nil || b == nil || a.Equal(b) {
			return jobs[i].Name < jobs[j].Name
		}
		return a.Before(b)
	})
	return jobs[:len(jobs)-int(*keep)]
}
