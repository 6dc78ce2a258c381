package counters

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestDurationsAreCountedUnderUpstreamsNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		began := time.Now()
		time.Sleep(10 * time.Second)
		c.PodStarted(began.Add(time.Second), began, 7*time.Second)
		c.Relisted(began)
		c.Relisted(time.Now())
		c.RuntimeCalled("pull_image", began, errors.New("no"))
		want := `
# HELP kubelet_runtime_operations_errors_total Cumulative number of runtime operation errors by operation type.
# TYPE kubelet_runtime_operations_errors_total counter
kubelet_runtime_operations_errors_total{operation_type="pull_image"} 1
# HELP kubelet_runtime_operations_total Cumulative number of runtime operations by operation type.
# TYPE kubelet_runtime_operations_total counter
kubelet_runtime_operations_total{operation_type="pull_image"} 1
`
		if err := testutil.GatherAndCompare(c.Gatherer(), strings.NewReader(want), "kubelet_runtime_operations_total", "kubelet_runtime_operations_errors_total"); err != nil {
			t.Error(err)
		}
		all, err := c.Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		sums := map[string]float64{}
		for _, f := range all {
			sums[f.GetName()] = f.GetMetric()[0].GetHistogram().GetSampleSum()
		}
		for name, sum := range map[string]float64{
			"kubelet_pod_start_duration_seconds": 9, "kubelet_pod_start_sli_duration_seconds": 3, "kubelet_pleg_relist_duration_seconds": 10,
			"kubelet_pleg_relist_interval_seconds": 10, "kubelet_runtime_operations_duration_seconds": 10,
		} {
			if sums[name] != sum {
				t.Errorf("%s is %v, want %v", name, sums[name], sum)
			}
		}
	})
}

func TestCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		c.Register(Certificates{ServingUntil: func() time.Time { return time.Now().Add(time.Minute) }, ClientErrors: func() uint64 { return 2 }})
		want := `
# HELP kubelet_certificate_manager_client_expiration_renew_errors Counter of certificate renewal errors.
# TYPE kubelet_certificate_manager_client_expiration_renew_errors counter
kubelet_certificate_manager_client_expiration_renew_errors 2
# HELP kubelet_certificate_manager_server_ttl_seconds Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate, in seconds until it expires; negative if it has.
# TYPE kubelet_certificate_manager_server_ttl_seconds gauge
kubelet_certificate_manager_server_ttl_seconds 60
`
		if err := testutil.GatherAndCompare(c.Gatherer(), strings.NewReader(want), "kubelet_certificate_manager_client_ttl_seconds",
			"kubelet_certificate_manager_server_ttl_seconds", "kubelet_certificate_manager_client_expiration_renew_errors"); err != nil {
			t.Error(err)
		}
	})
}
