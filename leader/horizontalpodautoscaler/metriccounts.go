package horizontalpodautoscaler

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"
)

// The metrics of autoscaling itself, under upstream's names.
var (
	rounds = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "horizontal_pod_autoscaler_controller_reconciliations_total", Help: "Number of reconciliations of HPA controller."}, []string{"action", "error"})
	roundSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds", Help: "The time(seconds) that the HPA controller takes to reconcile once.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}, []string{"action", "error"})
)

var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.RawMustRegister(rounds)
	legacyregistry.RawMustRegister(roundSeconds)
})

// counted notes one round for an autoscaler that had so many replicas and wants so many.
func counted(had, wants int32, began time.Time, err error) {
	action, fault := "none", "none"
	switch {
	case err != nil:
		fault = "internal"
	case wants > had:
		action = "scale_up"
	case wants < had:
		action = "scale_down"
	}
	rounds.WithLabelValues(action, fault).Inc()
	roundSeconds.WithLabelValues(action, fault).Observe(time.Since(began).Seconds())
}
