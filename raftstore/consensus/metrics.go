package consensus

import "github.com/prometheus/client_golang/prometheus"

// CommitSeconds is how long this server's writes took, from the proposal until they were applied here. It is one for the
// process, in which one store runs at a time.
var CommitSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
	Name: "balsa_raft_commit_duration_seconds", Help: "Time from a write's proposal on this server until it is applied here, in seconds.",
	Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15),
})
