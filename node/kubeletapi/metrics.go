package kubeletapi

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/balsahq/balsa/node/counters"
)

// ownProcess gathers the metrics of a process that a node shows as its own: of the Go runtime, the process, its client of the
// API, its build and its panics. On a server the process has many more, which the API's /metrics shows; they are not shown
// twice.
type ownProcess struct{ all prometheus.Gatherer }

var ownPrefixes = []string{"go_", "process_", "rest_client_", "kubernetes_build_info", "balsa_panics_", "balsa_node_", "kubeproxy_"}

// Gather implements prometheus.Gatherer.
func (p ownProcess) Gather() ([]*dto.MetricFamily, error) {
	all, err := p.all.Gather()
	return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool {
		return !slices.ContainsFunc(ownPrefixes, func(prefix string) bool { return strings.HasPrefix(f.GetName(), prefix) })
	}), err
}

// count counts a request under the first part of the path that the server knows it by.
func (s *Server) count(r *http.Request, began time.Time) {
	_, path, _ := strings.Cut(r.Pattern, "/")
	path, _, _ = strings.Cut(path, "/")
	if r.Pattern == "" {
		path = "other"
	}
	method := r.Method
	if verbs[method] == "" {
		method = "other"
	}
	s.cfg.Counters.Served(counters.Request{Method: method, Path: path, LongRunning: slices.Contains(longRunning, path)}, time.Since(began))
}

// longRunning are the paths of requests that last as long as the client wants.
var longRunning = []string{"exec", "attach", "portForward", "containerLogs"}

func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	sum, err := s.cfg.Backend.Summary(r.Context())
	if err != nil {
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	if only := r.FormValue("only_cpu_and_memory"); only == "true" || only == "1" {
		sum = cpuAndMemory(sum)
	}
	writeJSON(w, sum)
}

// cpuAndMemory returns the part of sum that autoscalers ask for.
func cpuAndMemory(sum *statsv1.Summary) *statsv1.Summary {
	n := sum.Node
	out := &statsv1.Summary{Node: statsv1.NodeStats{NodeName: n.NodeName, StartTime: n.StartTime, CPU: n.CPU, Memory: n.Memory, SystemContainers: n.SystemContainers}}
	for _, p := range sum.Pods {
		pod := statsv1.PodStats{PodRef: p.PodRef, StartTime: p.StartTime, CPU: p.CPU, Memory: p.Memory}
		for _, c := range p.Containers {
			pod.Containers = append(pod.Containers, statsv1.ContainerStats{Name: c.Name, StartTime: c.StartTime, CPU: c.CPU, Memory: c.Memory})
		}
		out.Pods = append(out.Pods, pod)
	}
	return out
}

func (s *Server) resourceMetrics(w http.ResponseWriter, r *http.Request) {
	s.serveSummaryMetrics(w, r, (*summaryMetrics).resource)
}

func (s *Server) cadvisorMetrics(w http.ResponseWriter, r *http.Request) {
	s.serveSummaryMetrics(w, r, (*summaryMetrics).cadvisor, s.cfg.Containers)
}

func (s *Server) probeMetrics(w http.ResponseWriter, r *http.Request) {
	serveCollectors(w, r, s.cfg.Probes)
}

// serveCollectors shows collectors that keep nothing between scrapes; one that is nil shows nothing.
func serveCollectors(w http.ResponseWriter, r *http.Request, list ...prometheus.Collector) {
	registry := prometheus.NewRegistry()
	for _, c := range list {
		if c != nil {
			registry.MustRegister(c)
		}
	}
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

func (s *Server) serveSummaryMetrics(w http.ResponseWriter, r *http.Request, collect func(*summaryMetrics), more ...prometheus.Collector) {
	sum, err := s.cfg.Backend.Summary(r.Context())
	if err != nil {
		s.log.Warn("the statistics of pods cannot be read; the metrics are served without them", "err", err)
		sum = nil
	}
	serveCollectors(w, r, append(more, &summaryMetrics{sum: sum, fill: collect})...)
}

// summaryMetrics shows one summary as metrics; nil when there was none. It lives for one scrape, so that no metric
// outlives its container.
type summaryMetrics struct {
	sum  *statsv1.Summary
	fill func(*summaryMetrics)
	out  chan<- prometheus.Metric
}

// Describe is part of prometheus.Collector; describing nothing makes it an unchecked one.
func (m *summaryMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect is part of prometheus.Collector.
func (m *summaryMetrics) Collect(out chan<- prometheus.Metric) {
	m.out = out
	m.fill(m)
}

var (
	podLabels       = []string{"pod", "namespace"}
	containerLabels = []string{"container", "pod", "namespace"}
	fsLabels        = []string{"container", "device", "namespace", "pod"}
	cadvisorLabels  = []string{"container", "id", "image", "name", "namespace", "pod"} // package containermetrics has the same

	nodeCPU          = newMetric("node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds", prometheus.CounterValue)
	nodeMemory       = newMetric("node_memory_working_set_bytes", "Current working set of the node in bytes", prometheus.GaugeValue)
	podCPU           = newMetric("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", prometheus.CounterValue, podLabels...)
	podMemory        = newMetric("pod_memory_working_set_bytes", "Current working set of the pod in bytes", prometheus.GaugeValue, podLabels...)
	containerCPU     = newMetric("container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", prometheus.CounterValue, containerLabels...)
	containerMemory  = newMetric("container_memory_working_set_bytes", "Current working set of the container in bytes", prometheus.GaugeValue, containerLabels...)
	containerStarted = newMetric("container_start_time_seconds", "Start time of the container since unix epoch in seconds", prometheus.GaugeValue, containerLabels...)
	scrapeError      = newMetric("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", prometheus.GaugeValue)

	fsUsage = newMetric("container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem.", prometheus.GaugeValue, fsLabels...)
	fsLimit = newMetric("container_fs_limit_bytes", "Number of bytes that can be consumed by the container on this filesystem.", prometheus.GaugeValue, fsLabels...)

	rootCPU    = newMetric("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", prometheus.CounterValue, cadvisorLabels...)
	rootMemory = newMetric("container_memory_working_set_bytes", "Current working set in bytes.", prometheus.GaugeValue, cadvisorLabels...)
	rootUsage  = newMetric("container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed.", prometheus.GaugeValue, cadvisorLabels...)
	rootRSS    = newMetric("container_memory_rss", "Size of RSS in bytes.", prometheus.GaugeValue, cadvisorLabels...)
)

type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func newMetric(name, help string, kind prometheus.ValueType, labels ...string) metric {
	return metric{desc: prometheus.NewDesc(name, help, labels, nil), kind: kind}
}

// send emits one sample, with the time it was taken when that is known.
func (m *summaryMetrics) send(d metric, at metav1.Time, value float64, labels ...string) {
	sample := prometheus.MustNewConstMetric(d.desc, d.kind, value, labels...)
	if !at.IsZero() {
		sample = prometheus.NewMetricWithTimestamp(at.Time, sample)
	}
	m.out <- sample
}

func (m *summaryMetrics) cpu(d metric, c *statsv1.CPUStats, labels ...string) {
	if c != nil && c.UsageCoreNanoSeconds != nil {
		m.send(d, c.Time, float64(*c.UsageCoreNanoSeconds)/float64(time.Second), labels...)
	}
}

func (m *summaryMetrics) bytes(d metric, at metav1.Time, value *uint64, labels ...string) {
	if value != nil {
		m.send(d, at, float64(*value), labels...)
	}
}

func (m *summaryMetrics) workingSet(d metric, mem *statsv1.MemoryStats, labels ...string) {
	if mem != nil {
		m.bytes(d, mem.Time, mem.WorkingSetBytes, labels...)
	}
}

// resource shows what /metrics/resource does.
func (m *summaryMetrics) resource() {
	if m.sum == nil {
		m.send(scrapeError, metav1.Time{}, 1)
		return
	}
	m.send(scrapeError, metav1.Time{}, 0)
	m.cpu(nodeCPU, m.sum.Node.CPU)
	m.workingSet(nodeMemory, m.sum.Node.Memory)
	for _, p := range m.sum.Pods {
		m.cpu(podCPU, p.CPU, p.PodRef.Name, p.PodRef.Namespace)
		m.workingSet(podMemory, p.Memory, p.PodRef.Name, p.PodRef.Namespace)
		for _, c := range p.Containers {
			m.cpu(containerCPU, c.CPU, c.Name, p.PodRef.Name, p.PodRef.Namespace)
			m.workingSet(containerMemory, c.Memory, c.Name, p.PodRef.Name, p.PodRef.Namespace)
			if c.StartTime.Unix() > 0 {
				m.send(containerStarted, metav1.Time{}, float64(c.StartTime.UnixNano())/float64(time.Second), c.Name, p.PodRef.Name, p.PodRef.Namespace)
			}
		}
	}
}

// cadvisor shows what package containermetrics does not read from control groups: the node as cAdvisor's group "/", and the
// containers' layers on the disk.
func (m *summaryMetrics) cadvisor() {
	if m.sum == nil {
		return
	}
	root := []string{"", "/", "", "", "", ""}
	m.cpu(rootCPU, m.sum.Node.CPU, root...)
	m.workingSet(rootMemory, m.sum.Node.Memory, root...)
	if mem := m.sum.Node.Memory; mem != nil {
		m.bytes(rootUsage, mem.Time, mem.UsageBytes, root...)
		m.bytes(rootRSS, mem.Time, mem.RSSBytes, root...)
	}
	for _, p := range m.sum.Pods {
		for _, c := range p.Containers {
			if fs := c.Rootfs; fs != nil {
				labels := []string{c.Name, "", p.PodRef.Namespace, p.PodRef.Name}
				m.bytes(fsUsage, metav1.Time{}, fs.UsedBytes, labels...)
				m.bytes(fsLimit, metav1.Time{}, fs.CapacityBytes, labels...)
			}
		}
	}
}
