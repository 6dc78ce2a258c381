package cronjob

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"
)

// creationSkew is upstream's metric of how late Jobs are made.
var creationSkew = prometheus.NewHistogram(prometheus.HistogramOpts{
	Name: "cronjob_controller_job_creation_skew_duration_seconds", Help: "Time between when a cronjob is scheduled to be run, and when the corresponding job is created",
	Buckets: prometheus.ExponentialBuckets(1, 2, 10),
})

var registerMetrics = sync.OnceFunc(func() { legacyregistry.RawMustRegister(creationSkew) })
