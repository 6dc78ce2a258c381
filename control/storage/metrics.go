package storage

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	etcdmetrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/balsahq/balsa/raftstore"
)

var fencedWrites = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "balsa_fenced_writes_refused_total", Help: "Writes that were refused because the leadership under which they were made had ended."})

// registerMetrics shows the metrics of storages. Those of requests are upstream's, etcd_request_*, because dashboards ask for
// them by these names; here the requests go to the store in the process.
var registerMetrics = sync.OnceFunc(func() {
	etcdmetrics.Register()
	legacyregistry.RawMustRegister(fencedWrites)
})

// took notes one request of the storage to the store.
func (s *store) took(operation string, began time.Time, err error) {
	etcdmetrics.RecordEtcdRequest(operation, s.GroupResource, err, began)
}

// operationOf is upstream's name of a write.
func operationOf(rev int64, op *raftstore.Op) string {
	switch {
	case op != nil && op.Type == raftstore.OpDelete:
		return "delete"
	case rev == 0:
		return "create"
	}
	return "update"
}
