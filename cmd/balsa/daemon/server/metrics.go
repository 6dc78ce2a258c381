package server

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	etcdmetrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

// shown is the store and the gossip of the process's present server. A server that joins its cluster anew has others, so the
// metrics ask here.
var shown struct {
	store  atomic.Pointer[raftstore.Store]
	gossip atomic.Pointer[atomic.Pointer[member.Gossip]]
}

var registerMetrics = sync.OnceFunc(func() {
	for _, c := range append(raftstore.Collectors(), storeCollector{}) {
		legacyregistry.RawMustRegister(c)
	}
	etcdmetrics.SetStorageMonitorGetter(func() ([]etcdmetrics.Monitor, error) {
		if s := shown.store.Load(); s != nil {
			return []etcdmetrics.Monitor{storeSize{s}}, nil
		}
		return nil, nil
	})
})

// showStore makes /metrics show this store and gossip from now on.
func showStore(store *raftstore.Store, gossip *atomic.Pointer[member.Gossip]) {
	shown.store.Store(store)
	shown.gossip.Store(gossip)
	registerMetrics()
}

var gossipMembers = prometheus.NewDesc("balsa_gossip_members", "Servers that gossip knows, by state.", []string{"state"}, nil)

// storeCollector shows what the store and gossip hold now.
type storeCollector struct{}

// Describe implements prometheus.Collector; describing nothing makes it an unchecked one.
func (storeCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (storeCollector) Collect(ch chan<- prometheus.Metric) {
	if s := shown.store.Load(); s != nil {
		s.Collect(ch)
	}
	holder := shown.gossip.Load()
	if holder == nil || holder.Load() == nil {
		return
	}
	byState := map[member.State]int{}
	for _, m := range holder.Load().Members() {
		byState[m.State]++
	}
	for state, n := range byState {
		ch <- prometheus.MustNewConstMetric(gossipMembers, prometheus.GaugeValue, float64(n), string(state))
	}
}

// storeSize shows the size of the store as apiserver_storage_size_bytes.
type storeSize struct{ store *raftstore.Store }

// Monitor implements etcdmetrics.Monitor.
func (s storeSize) Monitor(context.Context) (etcdmetrics.StorageMetrics, error) {
	return etcdmetrics.StorageMetrics{Size: s.store.Bytes()}, nil
}

// Close implements etcdmetrics.Monitor.
func (storeSize) Close() error { return nil }
