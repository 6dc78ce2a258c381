package workqueue

import (
	"time"

	// The queues' metrics, workqueue_*, under upstream's names.
	_ "k8s.io/component-base/metrics/prometheus/workqueue"
	"k8s.io/utils/clock"
)

// metricsInterval is how old workqueue_unfinished_work_seconds and workqueue_longest_running_processor_seconds may be.
//
// Upstream: each queue with metrics computes the two every 500 ms.
//
// Consequence: the queues of forty controllers would wake an idle server 80 times a second.
const metricsInterval = 15 * time.Second

// metricsClock is the real clock with slower tickers: of those two metrics, and of the look that a queue takes every 10 s at
// the keys that wait, in case a timer was missed. Delays and rate limits use timers, which it leaves alone.
type metricsClock struct{ clock.RealClock }

// NewTicker implements clock.WithTicker.
func (c metricsClock) NewTicker(d time.Duration) clock.Ticker {
	return c.RealClock.NewTicker(max(d, metricsInterval))
}
