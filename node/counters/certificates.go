package counters

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Certificates has the expiry of a node's certificates and the number of failed renewals. A nil function means no metric:
// the node of a server has no client certificate, because its client is in the process.
type Certificates struct {
	ClientUntil, ServingUntil   func() time.Time
	ClientErrors, ServingErrors func() uint64
}

var (
	clientTTL     = prometheus.NewDesc("kubelet_certificate_manager_client_ttl_seconds", "Gauge of the TTL (time-to-live) of the Kubelet's client certificate, in seconds until it expires; negative if it has.", nil, nil)
	servingTTL    = prometheus.NewDesc("kubelet_certificate_manager_server_ttl_seconds", "Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate, in seconds until it expires; negative if it has.", nil, nil)
	clientErrors  = prometheus.NewDesc("kubelet_certificate_manager_client_expiration_renew_errors", "Counter of certificate renewal errors.", nil, nil)
	servingErrors = prometheus.NewDesc("kubelet_server_expiration_renew_errors", "Counter of certificate renewal errors.", nil, nil)
)

// Describe implements prometheus.Collector; describing nothing makes it an unchecked one.
func (Certificates) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c Certificates) Collect(ch chan<- prometheus.Metric) {
	ttl := func(d *prometheus.Desc, until func() time.Time) {
		if until == nil {
			return
		}
		if t := until(); !t.IsZero() {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, time.Until(t).Seconds())
		}
	}
	ttl(clientTTL, c.ClientUntil)
	ttl(servingTTL, c.ServingUntil)
	count := func(d *prometheus.Desc, n func() uint64) {
		if n != nil {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n()))
		}
	}
	count(clientErrors, c.ClientErrors)
	count(servingErrors, c.ServingErrors)
}
