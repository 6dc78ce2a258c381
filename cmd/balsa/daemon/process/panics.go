package process

import (
	"context"
	"log/slog"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/balsahq/balsa/fault"
)

// ContainPanics has panics stay where they are: those in our units of work are logged by log, and those that the
// Kubernetes libraries recover (informers, work queues, post-start hooks) are counted and no longer raised again.
var ContainPanics = func() func(log *slog.Logger) {
	var once sync.Once
	return func(log *slog.Logger) {
		fault.LogTo(log)
		once.Do(func() {
			utilruntime.ReallyCrash = false
			utilruntime.PanicHandlers = []func(context.Context, any){libraryPanicked}
			prometheus.MustRegister(panicCollector{})        // the node's API
			legacyregistry.RawMustRegister(panicCollector{}) // the API
		})
	}
}()

// libraryPanicked counts and logs a panic. The one that aborts an HTTP answer goes on: net/http has to see it.
func libraryPanicked(_ context.Context, value any) {
	if value == http.ErrAbortHandler {
		panic(value)
	}
	fault.Caught("library", value)
}

var panicsTotal = prometheus.NewDesc("balsa_panics_total", "Panics that ended one unit of work and nothing else, by unit.", []string{"unit"}, nil)

// panicCollector shows the counts of package fault as a metric.
type panicCollector struct{}

// Describe implements prometheus.Collector.
func (panicCollector) Describe(ch chan<- *prometheus.Desc) { ch <- panicsTotal }

// Collect implements prometheus.Collector.
func (panicCollector) Collect(ch chan<- prometheus.Metric) {
	for unit, n := range fault.Counts() {
		ch <- prometheus.MustNewConstMetric(panicsTotal, prometheus.CounterValue, float64(n), unit)
	}
}
