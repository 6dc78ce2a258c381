package scheduler

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/balsahq/balsa/leader/scheduler/queue"
)

// Results of an attempt, as upstream's metrics name them.
const (
	resultScheduled     = "scheduled"
	resultUnschedulable = "unschedulable"
	resultError         = "error"
)

// Steps of an attempt that are timed, by upstream's names of extension points. Filters and scores are timed together, as
// scheduler_scheduling_algorithm_duration_seconds: here they are one function, not plug-ins.
const (
	stepPostFilter = "PostFilter" // preemption
	stepPreBind    = "PreBind"    // volumes
	stepBind       = "Bind"
)

// mostAttempts is the largest value of the label attempts; further attempts are counted under "15+", as upstream does.
const mostAttempts = 15

// The metrics of the scheduler, under upstream's names. They outlive a term, as counters must.
var (
	attemptsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "scheduler_schedule_attempts_total", Help: "Number of attempts to schedule pods, by the result."}, []string{"profile", "result"})
	attemptSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "scheduler_scheduling_attempt_duration_seconds", Help: "Scheduling attempt latency in seconds (algorithm and binding).",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}, []string{"profile", "result"})
	algorithmSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "scheduler_scheduling_algorithm_duration_seconds", Help: "Scheduling algorithm latency in seconds.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)})
	sliSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "scheduler_pod_scheduling_sli_duration_seconds", Help: "End-to-end latency of a pod being scheduled, from the first attempt on, in seconds.",
		Buckets: prometheus.ExponentialBuckets(0.01, 2, 20)}, []string{"attempts"})
	podAttempts = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "scheduler_pod_scheduling_attempts", Help: "Number of attempts to successfully schedule a pod.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 5)})
	stepSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "scheduler_framework_extension_point_duration_seconds", Help: "Latency of the steps of an attempt that are timed on their own.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 2, 12)}, []string{"extension_point", "profile", "status"})
	preemptionAttempts = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "scheduler_preemption_attempts_total", Help: "Total preemption attempts in the cluster till now."})
	preemptionVictims = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "scheduler_preemption_victims", Help: "Number of selected preemption victims.", Buckets: prometheus.ExponentialBuckets(1, 2, 7)})

	pendingPods = prometheus.NewDesc("scheduler_pending_pods", "Number of pending pods, by the queue: active, backoff, unschedulable or gated.", []string{"queue"}, nil)
	cacheSize   = prometheus.NewDesc("scheduler_cache_size", "Number of nodes and assumed pods in the scheduler's cache.", []string{"type"}, nil)
	goroutines  = prometheus.NewDesc("scheduler_goroutines", "Number of running goroutines, by the work they do.", []string{"operation"}, nil)
)

// running is the scheduler of the present term; nil while this process does not lead. A scrape reads it.
var running atomic.Pointer[Scheduler]

// registerMetrics shows the metrics at the server's /metrics. Series whose labels are known begin at zero, so that a rate
// over the first event is no gap.
var registerMetrics = sync.OnceFunc(func() {
	for _, c := range []prometheus.Collector{attemptsTotal, attemptSeconds, algorithmSeconds, sliSeconds, podAttempts, stepSeconds,
		preemptionAttempts, preemptionVictims, stateCollector{}} {
		legacyregistry.RawMustRegister(c)
	}
	for _, result := range []string{resultScheduled, resultUnschedulable, resultError} {
		attemptsTotal.WithLabelValues(DefaultName, result)
		attemptSeconds.WithLabelValues(DefaultName, result)
	}
	sliSeconds.WithLabelValues("1")
})

// stateCollector reads what the scheduler holds now.
type stateCollector struct{}

// Describe implements prometheus.Collector.
func (stateCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- pendingPods
	ch <- cacheSize
	ch <- goroutines
}

// Collect implements prometheus.Collector.
func (stateCollector) Collect(ch chan<- prometheus.Metric) {
	s := running.Load()
	var l queue.Lengths
	nodes, assumed, writes := 0, 0, 0
	if s != nil {
		l, nodes, assumed, writes = s.queue.Lengths(), s.cache.NodeCount(), s.cache.Assumed(), len(s.slots)
	}
	gauge := func(d *prometheus.Desc, label string, n int) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), label)
	}
	gauge(pendingPods, "active", l.Active)
	gauge(pendingPods, "backoff", l.Waiting)
	gauge(pendingPods, "unschedulable", l.Refused)
	gauge(pendingPods, "gated", l.Gated)
	gauge(cacheSize, "nodes", nodes)
	gauge(cacheSize, "assumed_pods", assumed)
	gauge(goroutines, "binding", writes)
}

// attempted counts an attempt that has ended, and of a pod that has a node now its whole wait.
func (s *Scheduler) attempted(item *queue.Item, result string) {
	now := s.cfg.Clock.Now()
	attemptsTotal.WithLabelValues(item.Pod.Object.Spec.SchedulerName, result).Inc()
	attemptSeconds.WithLabelValues(item.Pod.Object.Spec.SchedulerName, result).Observe(now.Sub(item.Popped).Seconds())
	if result != resultScheduled {
		return
	}
	podAttempts.Observe(float64(item.Attempts))
	sliSeconds.WithLabelValues(attemptsLabel(item.Attempts)).Observe(now.Sub(item.First).Seconds())
}

func attemptsLabel(n int) string {
	if n >= mostAttempts {
		return strconv.Itoa(mostAttempts) + "+"
	}
	return strconv.Itoa(n)
}

// stepTook notes how long a step took that began at the given time.
func (s *Scheduler) stepTook(pod *v1.Pod, step string, began time.Time, err error) {
	status := "Success"
	if err != nil {
		status = "Error"
	}
	stepSeconds.WithLabelValues(step, pod.Spec.SchedulerName, status).Observe(s.cfg.Clock.Since(began).Seconds())
}
