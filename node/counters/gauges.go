package counters

import "github.com/prometheus/client_golang/prometheus"

// State is what an agent has now, read at a scrape.
type State struct {
	Node       string
	Pods       int            // with a sandbox
	Containers map[string]int // by state: created, running, exited
}

var (
	nodeName          = prometheus.NewDesc("kubelet_node_name", "The node's name. The count is always 1.", []string{"node"}, nil)
	runningPods       = prometheus.NewDesc("kubelet_running_pods", "Number of pods that have a running pod sandbox", nil, nil)
	runningContainers = prometheus.NewDesc("kubelet_running_containers", "Number of containers, by state", []string{"container_state"}, nil)
)

// stateCollector shows a State.
type stateCollector func() State

// Show makes the counters show state, which is called at each scrape.
func (c *Counters) Show(state func() State) { c.registry.MustRegister(stateCollector(state)) }

// Register adds a collector of another part of the agent.
func (c *Counters) Register(more prometheus.Collector) { c.registry.MustRegister(more) }

// Describe implements prometheus.Collector.
func (stateCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- nodeName
	ch <- runningPods
	ch <- runningContainers
}

// Collect implements prometheus.Collector.
func (state stateCollector) Collect(ch chan<- prometheus.Metric) {
	s := state()
	ch <- prometheus.MustNewConstMetric(nodeName, prometheus.GaugeValue, 1, s.Node)
	ch <- prometheus.MustNewConstMetric(runningPods, prometheus.GaugeValue, float64(s.Pods))
	for name, n := range s.Containers {
		ch <- prometheus.MustNewConstMetric(runningContainers, prometheus.GaugeValue, float64(n), name)
	}
}
