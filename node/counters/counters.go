package counters

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Counters are those of one agent. Their methods may be called at the same time.
type Counters struct {
	registry *prometheus.Registry

	pods, podErrors         prometheus.Counter
	userPods, userPodErrors prometheus.Counter
	started, startErrors    *prometheus.CounterVec
	terminated              *prometheus.CounterVec
	evictions               *prometheus.CounterVec

	durations
}

// New returns counters at zero.
func New() *Counters {
	c := &Counters{registry: prometheus.NewRegistry()}
	counter := func(name, help string) prometheus.Counter {
		n := prometheus.NewCounter(prometheus.CounterOpts{Subsystem: "kubelet", Name: name, Help: help})
		c.registry.MustRegister(n)
		return n
	}
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		n := prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "kubelet", Name: name, Help: help}, labels)
		c.registry.MustRegister(n)
		return n
	}
	c.pods = counter("started_pods_total", "Cumulative number of pods started")
	c.podErrors = counter("started_pods_errors_total", "Cumulative number of errors when starting pods")
	c.userPods = counter("started_user_namespaced_pods_total", "Cumulative number of pods with user namespaces started")
	c.userPodErrors = counter("started_user_namespaced_pods_errors_total", "Cumulative number of errors when starting pods with user namespaces")
	c.started = vector("started_containers_total", "Cumulative number of containers started", "container_type")
	c.startErrors = vector("started_containers_errors_total", "Cumulative number of errors when starting containers", "container_type", "code")
	c.terminated = vector("terminated_containers_total", "Cumulative number of container terminations", "container_type", "exit_code", "reason")
	c.evictions = vector("evictions", "Cumulative number of pod evictions by eviction signal", "eviction_signal")
	c.durations = newDurations(func(m prometheus.Collector) { c.registry.MustRegister(m) })
	return c
}

// Gatherer gives the counters to a scrape.
func (c *Counters) Gatherer() prometheus.Gatherer { return c.registry }

// PodStarts counts the begin of a pod's sandbox.
func (c *Counters) PodStarts(ownUsers bool) {
	c.pods.Inc()
	if ownUsers {
		c.userPods.Inc()
	}
}

// PodFailed counts a sandbox that could not be made.
func (c *Counters) PodFailed(ownUsers bool) {
	c.podErrors.Inc()
	if ownUsers {
		c.userPodErrors.Inc()
	}
}

// ContainerStarts counts the begin of a container's creation. kind is "container", "init_container" or
// "ephemeral_container" here and below.
func (c *Counters) ContainerStarts(kind string) { c.started.WithLabelValues(kind).Inc() }

// ContainerFailed counts a container that could not be created or started, for a reason such as CreateContainerError.
func (c *Counters) ContainerFailed(kind, reason string, ownUsers bool) {
	c.startErrors.WithLabelValues(kind, reason).Inc()
	if ownUsers {
		c.userPodErrors.Inc()
	}
}

// ContainerEnded counts a container's end.
func (c *Counters) ContainerEnded(kind string, code int32, reason string) {
	c.terminated.WithLabelValues(kind, strconv.Itoa(int(code)), reason).Inc()
}

// Evicted counts a pod that was evicted for a signal such as memory.available.
func (c *Counters) Evicted(signal string) { c.evictions.WithLabelValues(signal).Inc() }
