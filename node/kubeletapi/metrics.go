package kubeletapi

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// processMetrics shows the metrics of the process and counters, which may be nil.
func processMetrics(counters prometheus.Gatherer) http.Handler {
	all := prometheus.Gatherers{prometheus.DefaultGatherer}
	if counters != nil {
		all = append(all, counters)
	}
	return promhttp.HandlerFor(all, promhttp.HandlerOpts{})
}

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
	s.serveSummaryMetrics(w, r, (*summaryMetrics).cadvisor)
}

func (s *Server) serveSummaryMetrics(w http.ResponseWriter, r *http.Request, collect func(*summaryMetrics)) {
	sum, err := s.cfg.Backend.Summary(r.Context())
	if err != nil {
		s.log.Warn("the statistics of pods cannot be read; the metrics are served without them", "err", err)
		sum = nil
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(&summaryMetrics{sum: sum, fill: collect})
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
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

	nodeCPU          = newMetric("node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds", prometheus.CounterValue)
	nodeMemory       = newMetric("node_memory_working_set_bytes", "Current working set of the node in bytes", prometheus.GaugeValue)
	podCPU           = newMetric("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", prometheus.CounterValue, podLabels...)
	podMemory        = newMetric("pod_memory_working_set_bytes", "Current working set of the pod in bytes", prometheus.GaugeValue, podLabels...)
	containerCPU     = newMetric("container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", prometheus.CounterValue, containerLabels...)
	containerMemory  = newMetric("container_memory_working_set_bytes", "Current working set of the container in bytes", prometheus.GaugeValue, containerLabels...)
	containerStarted = newMetric("container_start_time_seconds", "Start time of the container since unix epoch in seconds", prometheus.GaugeValue, containerLabels...)
	scrapeError      = newMetric("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", prometheus.GaugeValue)

	containerUsage = newMetric("container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", prometheus.GaugeValue, containerLabels...)
	containerRSS   = newMetric("container_memory_rss", "Size of RSS in bytes", prometheus.GaugeValue, containerLabels...)
	containerFs    = newMetric("container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem", prometheus.GaugeValue, containerLabels...)
	netReceive     = newMetric("container_network_receive_bytes_total", "Cumulative count of bytes received", prometheus.CounterValue, "interface", "pod", "namespace")
	netTransmit    = newMetric("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", prometheus.CounterValue, "interface", "pod", "namespace")
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

// cadvisor shows the part of /metrics/cadvisor that dashboards use most.
func (m *summaryMetrics) cadvisor() {
	if m.sum == nil {
		return
	}
	for _, p := range m.sum.Pods {
		ref := p.PodRef
		if p.Network != nil {
			for _, i := range p.Network.Interfaces {
				m.bytes(netReceive, p.Network.Time, i.RxBytes, i.Name, ref.Name, ref.Namespace)
				m.bytes(netTransmit, p.Network.Time, i.TxBytes, i.Name, ref.Name, ref.Namespace)
			}
		}
		for _, c := range p.Containers {
			m.cpu(containerCPU, c.CPU, c.Name, ref.Name, ref.Namespace)
			m.workingSet(containerMemory, c.Memory, c.Name, ref.Name, ref.Namespace)
			if c.Memory != nil {
				m.bytes(containerUsage, c.Memory.Time, c.Memory.UsageBytes, c.Name, ref.Name, ref.Namespace)
				m.bytes(containerRSS, c.Memory.Time, c.Memory.RSSBytes, c.Name, ref.Name, ref.Namespace)
			}
			if c.Rootfs != nil {
				m.bytes(containerFs, c.Rootfs.Time, c.Rootfs.UsedBytes, c.Name, ref.Name, ref.Namespace)
			}
		}
	}
}
