package leader

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"
)

// masterStatus is upstream's metric of a leader election, by the name of the Lease. Here one leadership stands for all of them.
var masterStatus = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "leader_election_master_status",
	Help: "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master.",
}, []string{"name"})

var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.RawMustRegister(masterStatus)
	showLeading(0)
})

// showLeading sets the metric of each Lease that shows the leader: 1 while this process leads, else 0.
func showLeading(value float64) {
	for _, l := range shown {
		masterStatus.WithLabelValues(l.name).Set(value)
	}
}
