package disruption

import (
	"time"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/balsahq/balsa/leader/pods"
)

// evictionTimeout is how long an eviction that was allowed may take to show; after that the pod counts again.
const evictionTimeout = 2 * time.Minute

// goal is how many pods a budget expects and how many of them it wants healthy. scale is the number of replicas the pods'
// owners ask for.
func goal(b *policy.PodDisruptionBudget, matching, scale int32) (expected, healthy int32, err error) {
	switch {
	case b.Spec.MaxUnavailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MaxUnavailable, int(scale), true)
		return scale, max(0, scale-int32(n)), err
	case b.Spec.MinAvailable == nil:
		return matching, 0, nil
	case b.Spec.MinAvailable.Type == intstr.Int:
		return matching, b.Spec.MinAvailable.IntVal, nil
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MinAvailable, int(scale), true)
	return scale, int32(n), err
}

// needsScale reports whether the owners have to be asked.
func needsScale(b *policy.PodDisruptionBudget) bool {
	return b.Spec.MaxUnavailable != nil || b.Spec.MinAvailable != nil && b.Spec.MinAvailable.Type == intstr.String
}

// underWay keeps the evictions that have been allowed and do not show yet, and says how long until the next of them times
// out (zero: none is left).
func underWay(b *policy.PodDisruptionBudget, matching []*v1.Pod, now time.Time) (map[string]metav1.Time, time.Duration) {
	out := map[string]metav1.Time{}
	var next time.Duration
	for _, p := range matching {
		at, ok := b.Status.DisruptedPods[p.Name]
		left := at.Add(evictionTimeout).Sub(now)
		if !ok || p.DeletionTimestamp != nil || left <= 0 {
			continue
		}
		out[p.Name] = at
		if next == 0 || left < next {
			next = left
		}
	}
	return out, next
}

func countHealthy(matching []*v1.Pod, evicted map[string]metav1.Time) (n int32) {
	for _, p := range matching {
		if _, gone := evicted[p.Name]; !gone && p.DeletionTimestamp == nil && pods.Ready(p) {
			n++
		}
	}
	return n
}

// allowed is how many pods may be disrupted. Without any pod expected none may: the first ones are yet to show.
func allowed(expected, desired, healthy int32) int32 {
	if expected <= 0 {
		return 0
	}
	return max(0, healthy-desired)
}
