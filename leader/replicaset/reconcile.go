package replicaset

import (
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/balsahq/balsa/leader/pods"
)

// burst bounds how many pods one reconcile creates or deletes.
const burst = 500

// plan is the change of the number of pods in one reconcile; at most one of its fields is set.
type plan struct {
	create int
	remove []*v1.Pod
}

// decide compares the active pods of a set with what it asks for. related are the active pods of every set that shares
// the set's own owner; they tell which node is crowded.
func decide(set *apps.ReplicaSet, active, related []*v1.Pod, now time.Time) plan {
	surplus := len(active) - int(wanted(set))
	switch {
	case surplus < 0:
		return plan{create: min(-surplus, burst)}
	case surplus > 0:
		return plan{remove: pods.Victims(active, related, min(surplus, burst), now)}
	}
	return plan{}
}

// wanted is the number of replicas asked for; the API's default is one.
func wanted(set *apps.ReplicaSet) int32 {
	if set.Spec.Replicas == nil {
		return 1
	}
	return *set.Spec.Replicas
}

// statusOf computes the status from the pods a set has, and how long until a ready pod becomes available (zero: none is
// waiting). failure is what creating or deleting pods returned.
func statusOf(set *apps.ReplicaSet, active []*v1.Pod, terminating int, failure error, now time.Time) (apps.ReplicaSetStatus, time.Duration) {
	s := *set.Status.DeepCopy()
	s.ObservedGeneration = set.Generation
	s.Replicas = int32(len(active))
	s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas = 0, 0, 0
	gone := int32(terminating)
	s.TerminatingReplicas = &gone

	minReady := time.Duration(set.Spec.MinReadySeconds) * time.Second
	template := labels.SelectorFromSet(set.Spec.Template.Labels)
	var next time.Duration
	for _, p := range active {
		if template.Matches(labels.Set(p.Labels)) {
			s.FullyLabeledReplicas++
		}
		if !pods.Ready(p) {
			continue
		}
		s.ReadyReplicas++
		ok, wait := pods.Available(p, minReady, now)
		if ok {
			s.AvailableReplicas++
		} else if wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
	}
	s.Conditions = failureCondition(s.Conditions, len(active)-int(wanted(set)), failure, now)
	return s, next
}

func failureCondition(conditions []apps.ReplicaSetCondition, surplus int, failure error, now time.Time) []apps.ReplicaSetCondition {
	var kept []apps.ReplicaSetCondition
	for _, c := range conditions {
		if c.Type != apps.ReplicaSetReplicaFailure {
			kept = append(kept, c)
		} else if failure != nil {
			return conditions // said already
		}
	}
	if failure == nil {
		return kept
	}
	reason := ""
	if surplus < 0 {
		reason = "FailedCreate"
	} else if surplus > 0 {
		reason = "FailedDelete"
	}
	return append(kept, apps.ReplicaSetCondition{
		Type: apps.ReplicaSetReplicaFailure, Status: v1.ConditionTrue, Reason: reason,
		Message: failure.Error(), LastTransitionTime: metav1.NewTime(now),
	})
}
