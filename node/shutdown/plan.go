package shutdown

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kubernetes/pkg/apis/scheduling"
)

// Reasons and texts, which are upstream's.
const (
	Reason         = "Terminated"
	Message        = "Pod was terminated in response to imminent node shutdown."
	RefusalReason  = "NodeShutdown"
	RefusalMessage = "Pod was rejected as the node is shutting down."
	NotReady       = "node is shutting down"
)

// Flags holds the settings as the administrator writes them. Names and meaning are the kubelet's.
type Flags struct {
	// Period is for all pods, and Critical the part of it that is kept for critical ones.
	Period, Critical time.Duration
	// ByPriority is another form: a time for the pods from each priority on.
	ByPriority map[string]string
}

// Group gives the pods from a priority on, up to the next group's, a time to end.
type Group struct {
	Priority int32
	Grace    time.Duration
}

// Parse returns the groups by ascending priority, none when shutdowns are not waited for. It reports every fault at once.
func (f Flags) Parse() ([]Group, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if f.Period < 0 || f.Period > 0 && f.Period < time.Second {
		fault("--shutdown-grace-period %s: give 1s or more, or 0 for none", f.Period)
	}
	if f.Critical < 0 || f.Critical > 0 && f.Critical < time.Second || f.Critical > f.Period {
		fault("--shutdown-grace-period-critical-pods %s: give 1s or more, up to --shutdown-grace-period", f.Critical)
	}
	if f.Period != 0 && len(f.ByPriority) > 0 {
		fault("--shutdown-grace-period-by-pod-priority: give it or --shutdown-grace-period, not both")
	}
	var groups []Group
	for _, p := range slices.Sorted(maps.Keys(f.ByPriority)) {
		priority, err := strconv.ParseInt(p, 10, 32)
		grace, err2 := time.ParseDuration(f.ByPriority[p])
		if err != nil || err2 != nil || grace < 0 {
			fault("--shutdown-grace-period-by-pod-priority %s=%s: give a priority and a time, as 100000=10s", p, f.ByPriority[p])
			continue
		}
		groups = append(groups, Group{int32(priority), grace})
	}
	if f.Period > 0 {
		groups = append(groups, Group{scheduling.DefaultPriorityWhenNoDefaultClassExists, f.Period - f.Critical}, Group{scheduling.SystemCriticalPriority, f.Critical})
	}
	slices.SortFunc(groups, func(a, b Group) int { return cmp.Compare(a.Priority, b.Priority) })
	return groups, errors.Join(faults...)
}

// Total returns how long the shutdown is held up at most.
func Total(groups []Group) (sum time.Duration) {
	for _, g := range groups {
		sum += g.Grace
	}
	return sum
}

// Wave is the pods that end at the same time.
type Wave struct {
	Grace time.Duration
	Pods  []*v1.Pod
}

// Plan returns the waves in which pods end: those of the lowest group first. Pods below all groups are in the first.
func Plan(groups []Group, pods []*v1.Pod) []Wave {
	waves := make([]Wave, len(groups))
	for i, g := range groups {
		waves[i].Grace = g.Grace
	}
	for _, pod := range pods {
		at := 0
		for i, g := range groups {
			if g.Priority <= corev1.PodPriority(pod) {
				at = i
			}
		}
		if len(waves) > 0 {
			waves[at].Pods = append(waves[at].Pods, pod)
		}
	}
	return slices.DeleteFunc(waves, func(w Wave) bool { return len(w.Pods) == 0 })
}

// GraceOf returns the grace period of a pod in a wave, in seconds.
func GraceOf(pod *v1.Pod, wave time.Duration) int64 {
	grace := int64(wave / time.Second)
	if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
		grace = min(grace, *own)
	}
	return grace
}
