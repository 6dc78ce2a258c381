package probe

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// probeTotal is upstream's metric of probes, for /metrics/probes.
var probeTotal = prometheus.NewDesc("prober_probe_total", "Cumulative number of a liveness, readiness or startup probe for a container by result.",
	[]string{"container", "namespace", "pod", "pod_uid", "probe_type", "result"}, nil)

// resultNames are upstream's names, in the order of worker.counts.
var resultNames = [...]string{"successful", "failed", "unknown"}

// count notes the outcome of one check.
func (w *worker) count(out outcome) {
	switch {
	case out.err != nil:
		w.counts[2].Add(1)
	case out.result == Failure:
		w.counts[1].Add(1)
	default:
		w.counts[0].Add(1)
	}
}

// Describe implements prometheus.Collector.
func (m *Manager) Describe(ch chan<- *prometheus.Desc) { ch <- probeTotal }

// Collect implements prometheus.Collector: it shows the probes that run now, so that a series ends with its container.
func (m *Manager) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, containers := range m.running {
		for name, p := range containers {
			for kind, w := range p.workers {
				for i := range w.counts {
					if n := w.counts[i].Load(); n > 0 {
						ch <- prometheus.MustNewConstMetric(probeTotal, prometheus.CounterValue, float64(n),
							name, w.target.Pod.Namespace, w.target.Pod.Name, string(uid), strings.ToLower(kind.String()), resultNames[i])
					}
				}
			}
		}
	}
}
