package pods

import (
	"math"
	"sort"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Victims returns the n pods of candidates that should be deleted first. Of two pods the one goes that is, by the first
// rule that tells them apart: not assigned to a node; in an earlier phase (Pending, Unknown, Running); not ready; cheaper
// by its pod-deletion-cost annotation; on the node with more of the pods in related; ready for a shorter time (compared
// on a logarithmic scale, KEP-2185); restarted more often; younger (same scale). Ties go by UID.
func Victims(candidates, related []*v1.Pod, n int, now time.Time) []*v1.Pod {
	if n >= len(candidates) {
		return candidates
	}
	if n <= 0 {
		return nil
	}
	onNode := map[string]int{}
	for _, p := range related {
		if Active(p) && p.Spec.NodeName != "" {
			onNode[p.Spec.NodeName]++
		}
	}
	sorted := append([]*v1.Pod(nil), candidates...)
	sort.SliceStable(sorted, func(i, j int) bool { return before(sorted[i], sorted[j], onNode, now) })
	return sorted[:n]
}

func before(a, b *v1.Pod, onNode map[string]int, now time.Time) bool {
	for _, d := range []int{
		flag(a.Spec.NodeName != "") - flag(b.Spec.NodeName != ""),
		phaseOrder(a) - phaseOrder(b),
		flag(Ready(a)) - flag(Ready(b)),
		compare(deletionCost(a), deletionCost(b)),
		onNode[b.Spec.NodeName] - onNode[a.Spec.NodeName],
		compareAge(readySince(a), readySince(b), now),
		maxRestarts(b) - maxRestarts(a),
		compareAge(a.CreationTimestamp.Time, b.CreationTimestamp.Time, now),
	} {
		if d != 0 {
			return d < 0
		}
	}
	return a.UID < b.UID
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func phaseOrder(p *v1.Pod) int {
	switch p.Status.Phase {
	case v1.PodPending, "":
		return 0
	case v1.PodUnknown:
		return 1
	}
	return 2
}

func deletionCost(p *v1.Pod) int64 {
	n, err := strconv.ParseInt(p.Annotations[v1.PodDeletionCost], 10, 32)
	if err != nil {
		return 0
	}
	return n
}

func readySince(p *v1.Pod) time.Time {
	if c := Condition(p, v1.PodReady); c != nil && c.Status == v1.ConditionTrue {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// compareAge is negative when a is the younger moment by at least a factor of two in age; an unset moment is youngest.
func compareAge(a, b, now time.Time) int {
	return bucket(a, now) - bucket(b, now)
}

func bucket(t, now time.Time) int {
	if t.IsZero() {
		return -1
	}
	age := now.Sub(t)
	if age < 1 {
		return 0
	}
	return 1 + int(math.Log2(float64(age)))
}

func maxRestarts(p *v1.Pod) int {
	most := int32(0)
	for _, statuses := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range statuses {
			most = max(most, statuses[i].RestartCount)
		}
	}
	return int(most)
}
