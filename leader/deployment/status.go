package deployment

import (
	"fmt"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of the Progressing condition that kubectl rollout status reads.
const (
	reasonCreated   = "NewReplicaSetCreated"
	reasonFound     = "FoundNewReplicaSet"
	reasonUpdated   = "ReplicaSetUpdated"
	reasonAvailable = "NewReplicaSetAvailable"
	reasonTimedOut  = "ProgressDeadlineExceeded"
	reasonPaused    = "DeploymentPaused"
	reasonResumed   = "DeploymentResumed"
	reasonFailed    = "ReplicaSetCreateError"
)

func condition(s *apps.DeploymentStatus, t apps.DeploymentConditionType) *apps.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

// setCondition replaces a condition whose status or reason changed; its transition time changes with the status only.
func setCondition(s *apps.DeploymentStatus, c apps.DeploymentCondition) {
	old := condition(s, c.Type)
	if old != nil && old.Status == c.Status && old.Reason == c.Reason {
		return
	}
	if old != nil && old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	dropCondition(s, c.Type)
	s.Conditions = append(s.Conditions, c)
}

func dropCondition(s *apps.DeploymentStatus, t apps.DeploymentConditionType) {
	var kept []apps.DeploymentCondition
	for _, c := range s.Conditions {
		if c.Type != t {
			kept = append(kept, c)
		}
	}
	s.Conditions = kept
}

func newCondition(t apps.DeploymentConditionType, status v1.ConditionStatus, reason, message string, now time.Time) apps.DeploymentCondition {
	at := metav1.NewTime(now)
	return apps.DeploymentCondition{Type: t, Status: status, Reason: reason, Message: message, LastUpdateTime: at, LastTransitionTime: at}
}

func progressing(status v1.ConditionStatus, reason, message string, now time.Time) apps.DeploymentCondition {
	return newCondition(apps.DeploymentProgressing, status, reason, message, now)
}

// hasDeadline: the largest value stands for "none".
func hasDeadline(d *apps.Deployment) bool {
	return d.Spec.ProgressDeadlineSeconds != nil && *d.Spec.ProgressDeadlineSeconds != 1<<31-1
}

// notePause records pausing and resuming, so that time spent paused does not count against the deadline.
func notePause(d *apps.Deployment, s *apps.DeploymentStatus, now time.Time) {
	c := condition(s, apps.DeploymentProgressing)
	if !hasDeadline(d) || c != nil && c.Reason == reasonTimedOut {
		return
	}
	noted := c != nil && c.Reason == reasonPaused
	switch {
	case d.Spec.Paused && !noted:
		setCondition(s, progressing(v1.ConditionUnknown, reasonPaused, "Deployment is paused", now))
	case !d.Spec.Paused && noted:
		setCondition(s, progressing(v1.ConditionUnknown, reasonResumed, "Deployment is resumed", now))
	}
}

// counts computes the numbers and the Available condition; all other conditions are kept.
func counts(d *apps.Deployment, kept apps.DeploymentStatus, current *apps.ReplicaSet, all []*apps.ReplicaSet, now time.Time) apps.DeploymentStatus {
	s := apps.DeploymentStatus{
		ObservedGeneration: d.Generation,
		CollisionCount:     kept.CollisionCount,
		Conditions:         append([]apps.DeploymentCondition(nil), kept.Conditions...),
		AvailableReplicas:  available(all),
	}
	terminating, known := int32(0), true
	for _, r := range all {
		s.Replicas += r.Status.Replicas
		s.ReadyReplicas += r.Status.ReadyReplicas
		if r.Status.TerminatingReplicas == nil {
			known = false
		} else {
			terminating += *r.Status.TerminatingReplicas
		}
	}
	if known {
		s.TerminatingReplicas = &terminating
	}
	if current != nil {
		s.UpdatedReplicas = current.Status.Replicas
	}
	s.UnavailableReplicas = max(0, total(all)-s.AvailableReplicas)
	if s.AvailableReplicas >= wanted(d)-maxUnavailable(d) {
		setCondition(&s, newCondition(apps.DeploymentAvailable, v1.ConditionTrue, "MinimumReplicasAvailable", "Deployment has minimum availability.", now))
	} else {
		setCondition(&s, newCondition(apps.DeploymentAvailable, v1.ConditionFalse, "MinimumReplicasUnavailable", "Deployment does not have minimum availability.", now))
	}
	return s
}

func complete(d *apps.Deployment, s *apps.DeploymentStatus) bool {
	return s.UpdatedReplicas == wanted(d) && s.Replicas == wanted(d) && s.AvailableReplicas == wanted(d) && s.ObservedGeneration >= d.Generation
}

func moved(old, now *apps.DeploymentStatus) bool {
	return now.UpdatedReplicas > old.UpdatedReplicas ||
		now.Replicas-now.UpdatedReplicas < old.Replicas-old.UpdatedReplicas ||
		now.ReadyReplicas > old.ReadyReplicas || now.AvailableReplicas > old.AvailableReplicas
}

func timedOut(d *apps.Deployment, s *apps.DeploymentStatus, now time.Time) bool {
	c := condition(s, apps.DeploymentProgressing)
	if !hasDeadline(d) || c == nil || c.Reason == reasonAvailable {
		return false
	}
	return c.Reason == reasonTimedOut || deadline(d, c).Before(now)
}

func deadline(d *apps.Deployment, c *apps.DeploymentCondition) time.Time {
	return c.LastUpdateTime.Add(time.Duration(*d.Spec.ProgressDeadlineSeconds) * time.Second)
}

// judgeProgress sets the Progressing and ReplicaFailure conditions of a rollout.
func judgeProgress(d *apps.Deployment, s *apps.DeploymentStatus, before *apps.DeploymentStatus, current *apps.ReplicaSet, all []*apps.ReplicaSet, now time.Time) {
	what := fmt.Sprintf("Deployment %q", d.Name)
	if current != nil {
		what = fmt.Sprintf("ReplicaSet %q", current.Name)
	}
	c := condition(before, apps.DeploymentProgressing)
	done := s.Replicas == s.UpdatedReplicas && c != nil && c.Reason == reasonAvailable
	switch {
	case !hasDeadline(d):
		dropCondition(s, apps.DeploymentProgressing)
	case done:
	case complete(d, s):
		setCondition(s, progressing(v1.ConditionTrue, reasonAvailable, what+" has successfully progressed.", now))
	case moved(before, s):
		next := progressing(v1.ConditionTrue, reasonUpdated, what+" is progressing.", now)
		if c != nil && c.Status == v1.ConditionTrue {
			next.LastTransitionTime = c.LastTransitionTime
		}
		dropCondition(s, apps.DeploymentProgressing) // progress renews the update time even when the reason stays
		setCondition(s, next)
	case timedOut(d, s, now):
		setCondition(s, progressing(v1.ConditionFalse, reasonTimedOut, what+" has timed out progressing.", now))
	}
	if f := failureOf(current, all); f != nil {
		setCondition(s, *f)
	} else {
		dropCondition(s, apps.DeploymentReplicaFailure)
	}
}

// failureOf is the current set's failure to make pods, or else any set's.
func failureOf(current *apps.ReplicaSet, all []*apps.ReplicaSet) *apps.DeploymentCondition {
	if current != nil {
		all = append([]*apps.ReplicaSet{current}, all...)
	}
	for _, s := range all {
		for _, c := range s.Status.Conditions {
			if c.Type == apps.ReplicaSetReplicaFailure {
				return &apps.DeploymentCondition{
					Type: apps.DeploymentReplicaFailure, Status: c.Status, Reason: c.Reason, Message: c.Message,
					LastTransitionTime: c.LastTransitionTime, LastUpdateTime: c.LastTransitionTime,
				}
			}
		}
	}
	return nil
}

// checkAgain returns after how long the deadline has to be checked; zero: it does not have to be.
func checkAgain(d *apps.Deployment, s *apps.DeploymentStatus, now time.Time) time.Duration {
	c := condition(s, apps.DeploymentProgressing)
	if !hasDeadline(d) || d.Spec.Paused || c == nil || c.Reason == reasonTimedOut || complete(d, s) {
		return 0
	}
	return max(deadline(d, c).Sub(now), 0) + time.Second
}
