package job

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
)

func TestAJobIsCountedOnceWhenItHasFinished(t *testing.T) {
	finishedTotal.Reset()
	syncsTotal.Reset()
	j := jobOf(1, 1, 1, batch.IndexedCompletion)
	running := j.Status
	done := batch.JobStatus{Conditions: []batch.JobCondition{{Type: batch.JobFailed, Status: v1.ConditionTrue, Reason: "BackoffLimitExceeded"}}}
	finished(j, &running)
	finished(j, &done)
	j.Status = done
	finished(j, &done)
	if n := testutil.ToFloat64(finishedTotal.WithLabelValues("Indexed", "BackoffLimitExceeded", "failed")); n != 1 || testutil.CollectAndCount(finishedTotal) != 1 {
		t.Errorf("counted %v times", n)
	}
	synced(j, &plan{create: []int{0}}, time.Now(), errors.New("no"))
	if n := testutil.ToFloat64(syncsTotal.WithLabelValues("pods_created", "Indexed", "error")); n != 1 {
		t.Errorf("counted %v rounds", n)
	}
}
