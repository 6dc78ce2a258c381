package pods

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// Condition returns the pod's condition of type t, or nil.
func Condition(p *v1.Pod, t v1.PodConditionType) *v1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// Ready reports whether the pod's Ready condition is true.
func Ready(p *v1.Pod) bool {
	c := Condition(p, v1.PodReady)
	return c != nil && c.Status == v1.ConditionTrue
}

// Available reports whether the pod has been ready for minReady. When it is ready but not for long enough, wait is how
// long is missing; otherwise wait is zero.
func Available(p *v1.Pod, minReady time.Duration, now time.Time) (ok bool, wait time.Duration) {
	c := Condition(p, v1.PodReady)
	if c == nil || c.Status != v1.ConditionTrue {
		return false, 0
	}
	if minReady <= 0 {
		return true, 0
	}
	since := c.LastTransitionTime.Time
	if since.IsZero() {
		return false, 0
	}
	if left := since.Add(minReady).Sub(now); left > 0 {
		return false, left
	}
	return true, 0
}

// Terminal reports whether the pod has run to its end.
func Terminal(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
}

// Active reports whether the pod still counts as a replica: it has neither ended nor been asked to go.
func Active(p *v1.Pod) bool {
	return !Terminal(p) && p.DeletionTimestamp == nil
}

// SetCondition puts c into the status, keeping the transition time when the status did not change, and reports whether
// anything changed.
func SetCondition(s *v1.PodStatus, c v1.PodCondition) bool {
	for i := range s.Conditions {
		old := &s.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		changed := old.Status != c.Status || old.Reason != c.Reason || old.Message != c.Message || !old.LastProbeTime.Equal(&c.LastProbeTime)
		*old = c
		return changed
	}
	s.Conditions = append(s.Conditions, c)
	return true
}
