package podloop

import (
	"encoding/json"
	"fmt"
	"strconv"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// StatusPatch returns a strategic merge patch from the pod's status to s. It has an effect on the pod of this UID only.
func StatusPatch(pod *v1.Pod, s v1.PodStatus) ([]byte, error) {
	before, err := json.Marshal(v1.Pod{Status: pod.Status})
	if err != nil {
		return nil, err
	}
	after, err := json.Marshal(v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Status: s})
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, v1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("difference of pod status: %w", err)
	}
	return patch, nil
}

// NormalizeStatus returns s with times in whole seconds, as the API keeps them.
func NormalizeStatus(s v1.PodStatus) v1.PodStatus {
	c := s.DeepCopy()
	trim := func(t *metav1.Time) { *t = t.Rfc3339Copy() }
	for i := range c.Conditions {
		trim(&c.Conditions[i].LastTransitionTime)
		trim(&c.Conditions[i].LastProbeTime)
	}
	if c.StartTime != nil {
		trim(c.StartTime)
	}
	for _, sts := range [][]v1.ContainerStatus{c.InitContainerStatuses, c.ContainerStatuses, c.EphemeralContainerStatuses} {
		for i := range sts {
			for _, st := range []*v1.ContainerState{&sts[i].State, &sts[i].LastTerminationState} {
				if st.Running != nil {
					trim(&st.Running.StartedAt)
				}
				if st.Terminated != nil {
					trim(&st.Terminated.StartedAt)
					trim(&st.Terminated.FinishedAt)
				}
			}
		}
	}
	return *c
}

// IsUrgent reports whether a change of the status is written without delay: the phase or the readiness changed, which
// controllers and Services act on.
func IsUrgent(old, s *v1.PodStatus) bool {
	if old.Phase != s.Phase {
		return true
	}
	ready := func(s *v1.PodStatus) v1.ConditionStatus {
		_, c := podutil.GetPodConditionFromList(s.Conditions, v1.PodReady)
		if c == nil {
			return v1.ConditionFalse
		}
		return c.Status
	}
	return ready(old) != ready(s)
}

// IsNewer reports whether b is the same version of the object as a, or a later one.
func IsNewer(a, b *v1.Pod) bool {
	x, err1 := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, err2 := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return err1 != nil || err2 != nil || y >= x
}
