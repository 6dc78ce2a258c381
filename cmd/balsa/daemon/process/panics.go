package process

import (
	"context"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_*, of every client in the process

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/fault"
)

// ContainPanics makes a panic end its unit of work only. Panics that package fault contains are logged by log. Panics that
// the Kubernetes libraries recover (in informers, work queues, post-start hooks) are counted and logged; by default the
// libraries would raise them again and end the process.
var ContainPanics = func() func(log *slog.Logger) {
	var once sync.Once
	return func(log *slog.Logger) {
		fault.LogTo(log)
		once.Do(func() {
			utilruntime.ReallyCrash = false
			utilruntime.PanicHandlers = []func(context.Context, any){libraryPanicked}
			legacyregistry.RawMustRegister(panicCollector{})
			legacyregistry.RawMustRegister(buildInfo())
		})
	}
}()

// libraryPanicked counts and logs a panic that a Kubernetes library recovered. http.ErrAbortHandler is raised again:
// net/http has to see it to abort the answer.
func libraryPanicked(_ context.Context, value any) {
	if value == http.ErrAbortHandler {
		panic(value)
	}
	fault.Caught("library", value)
}

// buildInfo is upstream's metric of a program's version; an alert compares it between the programs of a cluster.
func buildInfo() prometheus.Collector {
	version := strings.SplitN(strings.TrimPrefix(config.KubernetesVersion, "v"), ".", 3)
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubernetes_build_info", Help: "A metric with a constant '1' value labeled by major, minor, git version, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
		ConstLabels: prometheus.Labels{
			"major": version[0], "minor": version[1], "git_version": config.KubernetesVersion, "go_version": runtime.Version(),
			"compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH,
		},
	})
	info.Set(1)
	return info
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
