package job

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batch "k8s.io/api/batch/v1"
	"k8s.io/component-base/metrics/legacyregistry"
)

// The metrics of Jobs, under upstream's names.
var (
	syncsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "job_controller_job_syncs_total", Help: "The number of job syncs"}, []string{"action", "completion_mode", "result"})
	syncSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "job_controller_job_sync_duration_seconds", Help: "The time it took to sync a job", Buckets: prometheus.ExponentialBuckets(0.004, 2, 15),
	}, []string{"action", "completion_mode", "result"})
	finishedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "job_controller_jobs_finished_total", Help: "The number of finished jobs"}, []string{"completion_mode", "reason", "result"})
)

var registerMetrics = sync.OnceFunc(func() {
	for _, c := range []prometheus.Collector{syncsTotal, syncSeconds, finishedTotal} {
		legacyregistry.RawMustRegister(c)
	}
})

// synced notes one round for a Job, which made or deleted pods or only looked.
func synced(j *batch.Job, p *plan, began time.Time, err error) {
	action, result := "reconciling", "success"
	switch {
	case len(p.create) > 0:
		action = "pods_created"
	case len(p.remove) > 0:
		action = "pods_deleted"
	}
	if err != nil {
		result = "error"
	}
	syncsTotal.WithLabelValues(action, modeOf(j), result).Inc()
	syncSeconds.WithLabelValues(action, modeOf(j), result).Observe(time.Since(began).Seconds())
}

// finished notes the end of a Job whose new status has been written; before is the Job as it was. Reasons are this package's
// own, so they are few.
func finished(before *batch.Job, status *batch.JobStatus) {
	if _, done := Finished(before); done {
		return
	}
	for t, result := range map[batch.JobConditionType]string{batch.JobComplete: "succeeded", batch.JobFailed: "failed"} {
		if c := condition(status, t); c != nil {
			finishedTotal.WithLabelValues(modeOf(before), c.Reason, result).Inc()
		}
	}
}

func modeOf(j *batch.Job) string {
	if indexed(j) {
		return string(batch.IndexedCompletion)
	}
	return string(batch.NonIndexedCompletion)
}
