package resourcemetrics

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/node/stats"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at is a counter after so many seconds, of a container that began to run at another second.
func at(seconds, started int, cpu time.Duration) stats.Counter {
	return stats.Counter{
		At: start.Add(time.Duration(seconds) * time.Second), Started: start.Add(time.Duration(started) * time.Second), CPU: uint64(cpu), Memory: 5 << 20,
	}
}

func TestRatesAreThoseBetweenTwoSamples(t *testing.T) {
	type sample map[string]stats.Counter
	for name, c := range map[string]struct {
		samples []sample // 15 s apart
		want    string   // of the pod; "": it is not reported
		window  time.Duration
	}{
		"one sample":                      {samples: []sample{{"a": at(0, -60, 0)}}},
		"two samples":                     {samples: []sample{{"a": at(0, -60, 0)}, {"a": at(15, -60, 3*time.Second)}}, want: "200m", window: 15 * time.Second},
		"the last two count":              {samples: []sample{{"a": at(0, -60, 0)}, {"a": at(15, -60, 3*time.Second)}, {"a": at(30, -60, 3*time.Second)}}, want: "0", window: 15 * time.Second},
		"started 12 s ago":                {samples: []sample{{}, {"a": at(15, 3, 6*time.Second)}}, want: "500m", window: 12 * time.Second},
		"started 9 s ago":                 {samples: []sample{{}, {"a": at(15, 6, 6*time.Second)}}},
		"started before the first sample": {samples: []sample{{"a": at(0, -12, 6*time.Second)}}},
		"restarted 9 s ago":               {samples: []sample{{"a": at(0, -60, time.Hour)}, {"a": at(15, 6, time.Second)}}},
		"restarted 12 s ago":              {samples: []sample{{"a": at(0, -60, time.Hour)}, {"a": at(15, 3, 6*time.Second)}}, want: "500m", window: 12 * time.Second},
		"the counter went back":           {samples: []sample{{"a": at(0, -60, time.Hour)}, {"a": at(15, -60, time.Second)}}},
		"the runtime measured nothing":    {samples: []sample{{"a": at(0, -60, 0)}, {"a": at(15, -60, 3*time.Second)}, {"a": at(15, -60, 3*time.Second)}}, want: "200m", window: 15 * time.Second},
		"two containers":                  {samples: []sample{{"a": at(0, -60, 0), "b": at(0, -60, 0)}, {"a": at(15, -60, 3*time.Second), "b": at(14, -60, 0)}}, want: "200m", window: 14 * time.Second},
		"one container of two is new":     {samples: []sample{{"a": at(0, -60, 0)}, {"a": at(15, -60, 3*time.Second), "b": at(15, 8, 0)}}},
		"a container is gone":             {samples: []sample{{"a": at(0, -60, 0), "b": at(0, -60, 0)}, {"a": at(15, -60, 3*time.Second)}}, want: "200m", window: 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			var h history
			for i, s := range c.samples {
				u := stats.Usage{Pods: map[types.UID]stats.PodUsage{"u": {Namespace: "ns", Name: "p", Containers: s}}}
				h = h.next(u, start.Add(time.Duration(15*i)*time.Second))
			}
			got := h.podMetrics().Items
			if c.want == "" {
				if len(got) != 0 {
					t.Errorf("reported: %v", got)
				}
				return
			}
			if len(got) != 1 || got[0].Containers[0].Usage.Cpu().String() != c.want || got[0].Window.Duration != c.window {
				t.Fatalf("%v, want %s over %s", got, c.want, c.window)
			}
			if m := got[0].Containers[0].Usage.Memory().String(); m != "5Mi" {
				t.Errorf("memory %s", m)
			}
		})
	}
}

func TestWhatIsNotSampledAnyMoreIsForgotten(t *testing.T) {
	node := func(seconds int) *stats.Counter {
		c := at(seconds, 0, time.Duration(seconds)*time.Second)
		c.Started = time.Time{}
		return &c
	}
	pod := func(seconds int) map[types.UID]stats.PodUsage {
		return map[types.UID]stats.PodUsage{"u": {Namespace: "ns", Name: "p", Containers: map[string]stats.Counter{"a": at(seconds, -60, 0)}}}
	}
	h := history{}.next(stats.Usage{Node: node(0), Pods: pod(0)}, start)
	h = h.next(stats.Usage{Node: node(15), Pods: pod(15)}, start.Add(15*time.Second))
	if m := h.nodeMetrics("n"); m.Name != "n" || m.Usage.Cpu().String() != "1" || len(h.podMetrics().Items) != 1 {
		t.Fatalf("%v, %v", m, h.podMetrics())
	}
	h = h.next(stats.Usage{}, start.Add(30*time.Second))
	if m := h.nodeMetrics("n"); !m.Timestamp.IsZero() || len(h.podMetrics().Items) != 0 {
		t.Errorf("still known: %v, %v", m, h.podMetrics())
	}
}
