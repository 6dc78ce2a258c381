package nft

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	commitSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "balsa_node_nftables_commit_duration_seconds", Help: "Time of a transaction of nftables in the kernel, in seconds.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16)}, []string{"result"})
	commitBytes = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "balsa_node_nftables_commit_bytes_total", Help: "Size of the transactions sent to nftables."})
)

// Collectors returns the metrics of the transactions of all connections of the process.
func Collectors() []prometheus.Collector { return []prometheus.Collector{commitSeconds, commitBytes} }

func noteCommit(size int, began time.Time, err *error) {
	result := "success"
	if *err != nil {
		result = "error"
	}
	commitSeconds.WithLabelValues(result).Observe(time.Since(began).Seconds())
	commitBytes.Add(float64(size))
}
