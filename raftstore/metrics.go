package raftstore

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/balsahq/balsa/raftstore/consensus"
)

var snapshotSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
	Name: "balsa_raft_snapshot_duration_seconds", Help: "Time to write a snapshot of the state and to shorten the log, in seconds.",
	Buckets: prometheus.ExponentialBuckets(0.01, 2, 14),
}, []string{"result"})

// Collectors returns the metrics of the process's stores: histograms, which outlive a store.
func Collectors() []prometheus.Collector {
	for _, result := range []string{"success", "error"} {
		snapshotSeconds.WithLabelValues(result) // begins at zero, so that an alert sees the first failure
	}
	return []prometheus.Collector{consensus.CommitSeconds, snapshotSeconds}
}

var (
	raftTerm     = prometheus.NewDesc("balsa_raft_term", "Raft's term. It grows with each election.", nil, nil)
	raftLeads    = prometheus.NewDesc("balsa_raft_leads", "1 on the server that leads Raft, else 0.", nil, nil)
	raftHas      = prometheus.NewDesc("balsa_raft_has_leader", "1 while this server knows of a leader, else 0: writes wait.", nil, nil)
	raftLast     = prometheus.NewDesc("balsa_raft_last_index", "The newest entry in this server's log.", nil, nil)
	raftCommit   = prometheus.NewDesc("balsa_raft_commit_index", "The newest entry that this server knows to be committed.", nil, nil)
	raftApplied  = prometheus.NewDesc("balsa_raft_applied_index", "The newest entry that is part of this server's state.", nil, nil)
	raftContact  = prometheus.NewDesc("balsa_raft_last_contact_seconds", "Time since the leader's last message; 0 on the leader.", nil, nil)
	raftRefuses  = prometheus.NewDesc("balsa_raft_refuses_writes", "1 while this server's disk refuses writes, else 0.", nil, nil)
	storeRev     = prometheus.NewDesc("balsa_store_revision", "The revision of this server's state.", nil, nil)
	storeBytes   = prometheus.NewDesc("balsa_store_bytes", "Size of the live keys and their values, roughly.", nil, nil)
	storeLeases  = prometheus.NewDesc("balsa_store_leases", "Number of leases.", nil, nil)
	storeWatches = prometheus.NewDesc("balsa_store_watchers", "Number of watches on this server's state.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Store) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{raftTerm, raftLeads, raftHas, raftLast, raftCommit, raftApplied, raftContact, raftRefuses, storeRev, storeBytes, storeLeases, storeWatches} {
		ch <- d
	}
}

// Collect implements prometheus.Collector: it reads numbers that are there and asks no other server.
func (s *Store) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value)
	}
	is := func(d *prometheus.Desc, yes bool) {
		value := 0.0
		if yes {
			value = 1
		}
		gauge(d, value)
	}
	p := s.Progress()
	leader, _ := s.Leader()
	gauge(raftTerm, float64(p.Term))
	is(raftLeads, s.Leading())
	is(raftHas, leader != "")
	gauge(raftLast, float64(p.LastIndex))
	gauge(raftCommit, float64(p.CommitIndex))
	gauge(raftApplied, float64(p.AppliedIndex))
	gauge(raftContact, p.LastContact.Seconds())
	is(raftRefuses, s.consensus.Refused() != nil)
	gauge(storeRev, float64(p.Revision))
	gauge(storeBytes, float64(s.Bytes()))
	gauge(storeLeases, float64(len(s.Leases())))
	gauge(storeWatches, float64(s.machine.hub.count()))
}

// Bytes returns the size of the live keys and their values, roughly.
func (s *Store) Bytes() int64 { return s.machine.stateBytes.Load() }
