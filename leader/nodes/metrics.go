package nodes

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"
)

// taintDeletions is upstream's count of pods that a NoExecute taint drove out.
var taintDeletions = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "taint_eviction_controller_pod_deletions_total", Help: "Total number of Pods deleted by TaintEvictionController since its start."})

var registerMetrics = sync.OnceFunc(func() { legacyregistry.RawMustRegister(taintDeletions) })
