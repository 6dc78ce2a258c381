package overlay

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/routes"
)

// metrics are what a node's network counts: under kube-proxy's names where the meaning is the same.
type metrics struct {
	sync                            prometheus.Histogram
	serviceChanges, endpointChanges prometheus.Counter
	lastSync                        atomic.Int64 // Unix nanoseconds of the last success
	queued                          atomic.Int64 // of the last change of a Service or of its endpoints
	errors                          prometheus.Counter
	reach                           atomic.Pointer[reach]
}

// reach is how the other nodes are reached.
type reach struct{ gateways, tunnelled, faults int }

func newMetrics() *metrics {
	return &metrics{
		sync: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubeproxy_sync_proxy_rules_duration_seconds", Help: "SyncProxyRules latency in seconds", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}),
		serviceChanges: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubeproxy_sync_proxy_rules_service_changes_total", Help: "Cumulative proxy rules Service changes"}),
		endpointChanges: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubeproxy_sync_proxy_rules_endpoint_changes_total", Help: "Cumulative proxy rules Endpoint changes"}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubeproxy_sync_proxy_rules_nftables_sync_failures_total", Help: "Cumulative proxy nftables sync failures"}),
	}
}

// synced notes one round of bringing the Services into the kernel.
func (m *metrics) synced(began time.Time, err error) {
	m.sync.Observe(time.Since(began).Seconds())
	if err != nil {
		m.errors.Inc()
		return
	}
	m.lastSync.Store(time.Now().UnixNano())
}

// changed notes a change that the engine has to carry out, in the counter of its kind.
func (m *metrics) changed(kind prometheus.Counter) {
	kind.Inc()
	m.queued.Store(time.Now().UnixNano())
}

// planned notes how the other nodes are reached from now on.
func (m *metrics) planned(p *routes.Plan) {
	r := &reach{gateways: len(p.Gateways), faults: len(p.Faults)}
	if p.Tunnel != nil {
		r.tunnelled = len(p.Tunnel.Peers)
	}
	m.reach.Store(r)
}

var (
	lastSyncDesc   = prometheus.NewDesc("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "The last time proxy rules were successfully synced", nil, nil)
	lastQueuedDesc = prometheus.NewDesc("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "The last time a sync of proxy rules was queued", nil, nil)
	peersDesc      = prometheus.NewDesc("balsa_node_overlay_peers", "Networks of other nodes' pods that are reached, by the way: gateway (a route on the same subnet) or tunnel.", []string{"way"}, nil)
	faultsDesc     = prometheus.NewDesc("balsa_node_overlay_unreached", "Networks of other nodes that cannot be reached; the log says why.", nil, nil)
	narrowDesc     = prometheus.NewDesc("balsa_node_path_mtu_narrow", "Paths to other nodes that take smaller packets than this node's link.", nil, nil)
	smallestDesc   = prometheus.NewDesc("balsa_node_path_mtu_smallest_bytes", "The largest packet that the narrowest path to another node takes; 0 when no path is narrow.", nil, nil)
)

// Describe implements prometheus.Collector; describing nothing makes it an unchecked one.
func (n *Network) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (n *Network) Collect(ch chan<- prometheus.Metric) {
	m := n.engine.metrics
	for _, c := range append(nft.Collectors(), m.sync, m.serviceChanges, m.endpointChanges, m.errors) {
		c.Collect(ch)
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(lastSyncDesc, float64(m.lastSync.Load())/1e9)
	gauge(lastQueuedDesc, float64(m.queued.Load())/1e9)
	if r := m.reach.Load(); r != nil {
		gauge(peersDesc, float64(r.gateways), "gateway")
		gauge(peersDesc, float64(r.tunnelled), "tunnel")
		gauge(faultsDesc, float64(r.faults))
	}
	paths, smallest := n.engine.prober.Paths(), 0
	for _, size := range paths {
		if smallest == 0 || size < smallest {
			smallest = size
		}
	}
	gauge(narrowDesc, float64(len(paths)))
	gauge(smallestDesc, float64(smallest))
}
