package counters

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// startBuckets are upstream's for the start of a pod, in seconds.
var startBuckets = []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}

// durations are the histograms of an agent.
type durations struct {
	podStart, podStartSLI       prometheus.Histogram
	work                        *prometheus.HistogramVec
	relist, relistInterval      prometheus.Histogram
	lastRelist                  atomic.Int64 // Unix nanoseconds
	operations, operationErrors *prometheus.CounterVec
	operationSeconds            *prometheus.HistogramVec
	cgroups                     *prometheus.HistogramVec
	requests                    *prometheus.CounterVec
	requestSeconds              *prometheus.HistogramVec
}

func newDurations(register func(prometheus.Collector)) durations {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: "kubelet", Name: name, Help: help, Buckets: buckets})
		register(h)
		return h
	}
	vector := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Subsystem: "kubelet", Name: name, Help: help, Buckets: buckets}, labels)
		register(h)
		return h
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		n := prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "kubelet", Name: name, Help: help}, labels)
		register(n)
		return n
	}
	return durations{
		podStart:         histogram("pod_start_duration_seconds", "Duration in seconds from the agent seeing a pod for the first time to the pod starting to run", startBuckets),
		podStartSLI:      histogram("pod_start_sli_duration_seconds", "Duration in seconds to start a pod, without the time to pull images, measured from the pod's creation to when its containers have started", startBuckets),
		work:             vector("pod_worker_duration_seconds", "Duration in seconds of one operation on a pod. Broken down by operation type: SetUpVolumes, CreateSandbox, StartContainer …", prometheus.DefBuckets, "operation_type"),
		relist:           histogram("pleg_relist_duration_seconds", "Duration in seconds of listing the pods of the runtime. Events make most lists needless.", prometheus.DefBuckets),
		relistInterval:   histogram("pleg_relist_interval_seconds", "Interval in seconds between two lists of the pods of the runtime.", []float64{1, 10, 60, 120, 300, 600}),
		operations:       counter("runtime_operations_total", "Cumulative number of runtime operations by operation type.", "operation_type"),
		operationErrors:  counter("runtime_operations_errors_total", "Cumulative number of runtime operation errors by operation type.", "operation_type"),
		operationSeconds: vector("runtime_operations_duration_seconds", "Duration in seconds of runtime operations. Broken down by operation type.", prometheus.ExponentialBuckets(.005, 2.5, 14), "operation_type"),
		cgroups:          vector("cgroup_manager_duration_seconds", "Duration in seconds for cgroup manager operations. Broken down by method.", prometheus.DefBuckets, "operation_type"),
		requests:         counter("http_requests_total", "Number of the http requests received since the server started", "long_running", "method", "path", "server_type"),
		requestSeconds:   vector("http_requests_duration_seconds", "Duration in seconds to serve http requests", prometheus.DefBuckets, "long_running", "method", "path", "server_type"),
	}
}

// PodStarted notes a pod whose containers have started: it was seen and created at the given times, and pulling images took
// pulling of that. The SLI leaves out the pull, as upstream's does.
func (c *Counters) PodStarted(seen, created time.Time, pulling time.Duration) {
	now := time.Now()
	c.podStart.Observe(now.Sub(seen).Seconds())
	c.podStartSLI.Observe(max(0, now.Sub(created)-pulling).Seconds())
}

// Worked notes one operation on a pod.
func (c *Counters) Worked(operation string, took time.Duration) {
	c.work.WithLabelValues(operation).Observe(took.Seconds())
}

// Relisted notes a list of the pods of the runtime that began at the given time and has ended.
func (c *Counters) Relisted(began time.Time) {
	c.relist.Observe(time.Since(began).Seconds())
	if last := c.lastRelist.Swap(began.UnixNano()); last != 0 {
		c.relistInterval.Observe(began.Sub(time.Unix(0, last)).Seconds())
	}
}

// RuntimeCalled notes a call to the container runtime, by upstream's name of it.
func (c *Counters) RuntimeCalled(operation string, began time.Time, err error) {
	c.operations.WithLabelValues(operation).Inc()
	c.operationSeconds.WithLabelValues(operation).Observe(time.Since(began).Seconds())
	if err != nil {
		c.operationErrors.WithLabelValues(operation).Inc()
	}
}

// CgroupChanged notes an operation on the control group of a pod: update or destroy.
func (c *Counters) CgroupChanged(operation string, began time.Time) {
	c.cgroups.WithLabelValues(operation).Observe(time.Since(began).Seconds())
}

// Request is one request to the agent's API. Path is one of the few that it serves, not what the client wrote.
type Request struct {
	Method, Path string
	LongRunning  bool
}

// Served notes a request that has been answered.
func (c *Counters) Served(r Request, took time.Duration) {
	long := "false"
	if r.LongRunning {
		long = "true"
	}
	c.requests.WithLabelValues(long, r.Method, r.Path, "readwrite").Inc()
	c.requestSeconds.WithLabelValues(long, r.Method, r.Path, "readwrite").Observe(took.Seconds())
}
