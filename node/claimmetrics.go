package node

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/podworker"
)

// claimTimeout is how long a scrape waits for the file systems of claims. A network file system whose server is gone does
// not answer at all.
const claimTimeout = 2 * time.Second

var claimLabels = []string{"namespace", "persistentvolumeclaim"}

// claimRows are upstream's metrics of mounted claims.
var claimRows = []struct {
	desc  *prometheus.Desc
	value func(*unix.Statfs_t) uint64
}{
	{claimDesc("capacity_bytes", "Capacity in bytes of the volume"), func(s *unix.Statfs_t) uint64 { return s.Blocks * uint64(s.Bsize) }},
	{claimDesc("available_bytes", "Number of available bytes in the volume"), func(s *unix.Statfs_t) uint64 { return s.Bavail * uint64(s.Bsize) }},
	{claimDesc("used_bytes", "Number of used bytes in the volume"), func(s *unix.Statfs_t) uint64 { return (s.Blocks - s.Bfree) * uint64(s.Bsize) }},
	{claimDesc("inodes", "Maximum number of inodes in the volume"), func(s *unix.Statfs_t) uint64 { return s.Files }},
	{claimDesc("inodes_free", "Number of free inodes in the volume"), func(s *unix.Statfs_t) uint64 { return s.Ffree }},
	{claimDesc("inodes_used", "Number of used inodes in the volume"), func(s *unix.Statfs_t) uint64 { return s.Files - s.Ffree }},
}

func claimDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("kubelet_volume_stats_"+name, help, claimLabels, nil)
}

// claimMetrics measures the file systems of mounted claims when it is scraped.
type claimMetrics struct {
	views func() map[types.UID]*podworker.View

	mu   sync.Mutex
	busy map[string]bool // directories that have not answered an earlier scrape
}

// Describe implements prometheus.Collector.
func (m *claimMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, r := range claimRows {
		ch <- r.desc
	}
}

type measuredClaim struct {
	key types.NamespacedName
	st  unix.Statfs_t
	err error
}

// Collect implements prometheus.Collector. A claim whose file system does not answer in time is left out, and asked again
// only when it has answered.
func (m *claimMetrics) Collect(ch chan<- prometheus.Metric) {
	dirs := m.idle()
	results := make(chan measuredClaim, len(dirs))
	for key, dir := range dirs {
		go fault.Contained("node/claim metrics", func() {
			c := measuredClaim{key: key}
			c.err = unix.Statfs(dir, &c.st)
			m.mu.Lock()
			delete(m.busy, dir)
			m.mu.Unlock()
			results <- c
		})()
	}
	patience := time.NewTimer(claimTimeout)
	defer patience.Stop()
	for range dirs {
		select {
		case c := <-results:
			if c.err != nil {
				continue
			}
			for _, r := range claimRows {
				ch <- prometheus.MustNewConstMetric(r.desc, prometheus.GaugeValue, float64(r.value(&c.st)), c.key.Namespace, c.key.Name)
			}
		case <-patience.C:
			return
		}
	}
}

// idle returns the directories of claims that may be asked, each marked as busy.
func (m *claimMetrics) idle() map[types.NamespacedName]string {
	out := map[types.NamespacedName]string{}
	views := m.views()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range views {
		for claim, dir := range v.Claims {
			key := types.NamespacedName{Namespace: v.Pod.Namespace, Name: claim}
			if out[key] == "" && !m.busy[dir] {
				out[key], m.busy[dir] = dir, true
			}
		}
	}
	return out
}
