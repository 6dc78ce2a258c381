package cronjob

import (
	"testing"
	"time"
	_ "time/tzdata" // the test must not depend on the machine

	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var t0 = time.Date(2026, 1, 1, 10, 0, 30, 0, time.UTC)

func cronJob(schedule string, change ...func(*batch.CronJob)) *batch.CronJob {
	c := &batch.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", CreationTimestamp: metav1.NewTime(t0)}, Spec: batch.CronJobSpec{Schedule: schedule}}
	for _, f := range change {
		f(c)
	}
	return c
}

func at(h, m int) time.Time { return time.Date(2026, 1, 1, h, m, 0, 0, time.UTC) }

func last(t time.Time) func(*batch.CronJob) {
	return func(c *batch.CronJob) { x := metav1.NewTime(t); c.Status.LastScheduleTime = &x }
}

func deadline(s int64) func(*batch.CronJob) {
	return func(c *batch.CronJob) { c.Spec.StartingDeadlineSeconds = &s }
}

func busy(p batch.ConcurrencyPolicy) func(*batch.CronJob) {
	return func(c *batch.CronJob) {
		c.Spec.ConcurrencyPolicy = p
		c.Status.Active = []v1.ObjectReference{{Name: "c-1", UID: "u"}}
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name  string
		cron  *batch.CronJob
		now   time.Time
		start time.Time
		end   int
		event string
	}{
		{"not yet", cronJob("*/5 * * * *"), at(10, 4), time.Time{}, 0, ""},
		{"due", cronJob("*/5 * * * *"), at(10, 5), at(10, 5), 0, ""},
		{"a little late", cronJob("*/5 * * * *"), at(10, 9), at(10, 5), 0, ""},
		{"the latest of several", cronJob("*/5 * * * *"), at(10, 31), at(10, 30), 0, ""},
		{"done already", cronJob("*/5 * * * *", last(at(10, 5))), at(10, 6), time.Time{}, 0, ""},
		{"after the last", cronJob("*/5 * * * *", last(at(10, 5))), at(10, 10), at(10, 10), 0, ""},
		{"too late", cronJob("0 * * * *", deadline(60)), at(11, 30), time.Time{}, 0, ""},
		{"within the deadline", cronJob("0 * * * *", deadline(60)), at(11, 0).Add(30 * time.Second), at(11, 0), 0, ""},
		{"far too many missed", cronJob("* * * * *"), at(14, 0), at(14, 0), 0, "TooManyMissedTimes"},
		{"runs still, forbidden", cronJob("*/5 * * * *", busy(batch.ForbidConcurrent)), at(10, 5), time.Time{}, 0, "JobAlreadyActive"},
		{"runs still, allowed", cronJob("*/5 * * * *", busy(batch.AllowConcurrent)), at(10, 5), at(10, 5), 0, ""},
		{"runs still, replaced", cronJob("*/5 * * * *", busy(batch.ReplaceConcurrent)), at(10, 5), at(10, 5), 1, ""},
	} {
		s, err := parse(c.cron)
		if err != nil {
			t.Fatal(err)
		}
		v, err := judge(c.cron, s, c.now)
		if err != nil || !v.start.Equal(c.start) || len(v.end) != c.end || v.event != c.event {
			t.Errorf("%s: %+v, %v", c.name, v, err)
		}
	}
}

func TestSchedulesThatNeverComeAndBadOnes(t *testing.T) {
	c := cronJob("59 23 31 2 *")
	s, err := parse(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := judge(c, s, at(12, 0)); err == nil {
		t.Error("a schedule that never comes is accepted")
	}
	if _, err := parse(cronJob("every now and then")); err == nil {
		t.Error("nonsense is accepted")
	}
}

func TestTimeZone(t *testing.T) {
	zone := "America/New_York" // five hours behind in January
	c := cronJob("0 6 * * *", func(c *batch.CronJob) { c.Spec.TimeZone = &zone })
	s, err := parse(c)
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := judge(c, s, at(11, 1)); !v.start.Equal(at(11, 0)) {
		t.Fatalf("%+v", v)
	}
}

func TestJobsOfOneStartShareAName(t *testing.T) {
	c := cronJob("* * * * *")
	if a, b := newJob(c, at(10, 5)), newJob(c, at(10, 5)); a.Name != b.Name || a.Annotations[batch.CronJobScheduledTimestampAnnotation] != "2026-01-01T10:05:00Z" {
		t.Fatal(a.Name, b.Name, a.Annotations)
	}
	if newJob(c, at(10, 5)).Name == newJob(c, at(10, 6)).Name {
		t.Fatal("two starts share a name")
	}
}

func TestHistoryLimits(t *testing.T) {
	one := int32(1)
	c := cronJob("* * * * *", func(c *batch.CronJob) { c.Spec.SuccessfulJobsHistoryLimit = &one })
	ended := func(name string, m int) *batch.Job {
		start := metav1.NewTime(at(10, m))
		return &batch.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: batch.JobStatus{StartTime: &start, Conditions: []batch.JobCondition{{Type: batch.JobComplete, Status: v1.ConditionTrue}}}}
	}
	got := surplus(c, []*batch.Job{ended("new", 3), ended("old", 1), ended("mid", 2), {}})
	if len(got) != 2 || got[0].Name != "old" || got[1].Name != "mid" {
		t.Fatal(got)
	}
}
