package resourcemetrics

import (
	"cmp"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/balsahq/balsa/node/stats"
)

// freshAfter is how long a container must have run until its start counts as its first sample; metrics-server's figure.
// In less time, starting up is all that would be seen.
const freshAfter = 10 * time.Second

// span is what was used between two samples.
type span struct {
	from, to stats.Counter
	known    bool // false: there is one sample, to
}

// next returns the span that ends with a newer sample. last is when the node was sampled before.
func (s span) next(now stats.Counter, last time.Time) span {
	switch {
	case !now.At.After(s.to.At):
		return s // the runtime has measured nothing since
	case !s.to.At.IsZero() && s.to.Started.Equal(now.Started) && now.CPU >= s.to.CPU:
		return span{from: s.to, to: now, known: true}
	case !last.IsZero() && now.Started.After(last) && now.At.Sub(now.Started) >= freshAfter:
		return span{from: stats.Counter{At: now.Started, Started: now.Started}, to: now, known: true}
	}
	return span{to: now}
}

func (s span) window() time.Duration { return s.to.At.Sub(s.from.At) }

// usage is the rate of processor time in nanocores, and the working set at the end.
func (s span) usage() v1.ResourceList {
	nanocores := float64(s.to.CPU-s.from.CPU) / s.window().Seconds()
	return v1.ResourceList{
		v1.ResourceCPU:    *resource.NewScaledQuantity(int64(nanocores), resource.Nano),
		v1.ResourceMemory: *resource.NewQuantity(int64(s.to.Memory), resource.BinarySI),
	}
}

// podSpans are those of a pod's containers, by name.
type podSpans struct {
	namespace, name string
	containers      map[string]span
}

// history is what the samples so far say. It is a value: next returns a new one.
type history struct {
	at   time.Time // of the newest sample
	node span
	pods map[types.UID]podSpans
}

// next adds a sample. Pods and containers that are not in it are forgotten.
func (h history) next(u stats.Usage, at time.Time) history {
	out := history{at: at, pods: make(map[types.UID]podSpans, len(u.Pods))}
	if u.Node != nil {
		out.node = h.node.next(*u.Node, h.at)
	}
	for uid, p := range u.Pods {
		spans := podSpans{namespace: p.Namespace, name: p.Name, containers: make(map[string]span, len(p.Containers))}
		for name, c := range p.Containers {
			spans.containers[name] = h.pods[uid].containers[name].next(c, h.at)
		}
		out.pods[uid] = spans
	}
	return out
}

// nodeMetrics is empty while nothing is known of the node.
func (h history) nodeMetrics(name string) *metricsv1beta1.NodeMetrics {
	if !h.node.known {
		return &metricsv1beta1.NodeMetrics{}
	}
	return &metricsv1beta1.NodeMetrics{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Timestamp: metav1.NewTime(h.node.to.At),
		Window: metav1.Duration{Duration: h.node.window()}, Usage: h.node.usage(),
	}
}

// podMetrics are those of the pods of which every container is known, by namespace and name.
func (h history) podMetrics() *metricsv1beta1.PodMetricsList {
	list := &metricsv1beta1.PodMetricsList{}
	for _, p := range h.pods {
		if m, ok := p.metrics(); ok {
			list.Items = append(list.Items, m)
		}
	}
	slices.SortFunc(list.Items, func(a, b metricsv1beta1.PodMetrics) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// metrics are as old as the oldest of the containers', as metrics-server says it.
func (p podSpans) metrics() (metricsv1beta1.PodMetrics, bool) {
	out := metricsv1beta1.PodMetrics{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.name}}
	for _, name := range slices.Sorted(maps.Keys(p.containers)) {
		s := p.containers[name]
		if !s.known {
			return out, false
		}
		if out.Timestamp.IsZero() || s.to.At.Before(out.Timestamp.Time) {
			out.Timestamp, out.Window = metav1.NewTime(s.to.At), metav1.Duration{Duration: s.window()}
		}
		out.Containers = append(out.Containers, metricsv1beta1.ContainerMetrics{Name: name, Usage: s.usage()})
	}
	return out, true
}
