package rules

import (
	"math"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

// TopologySpreadScore prefers domains with fewer of the pods that a ScheduleAnyway constraint counts. A pod without
// constraints is spread over hosts and zones with the pods of its services and of its controller.
var TopologySpreadScore = Score{Name: "PodTopologySpread", Weight: 2, Prepare: func(c *Cycle, candidates []*snapshot.Node) Scorer {
	return prepareSpreadScore(c, candidates, nil)
}}

// prepareSpreadScore takes the constraints of the pod, else those of listed, else, when listed is nil, defaultConstraints.
func prepareSpreadScore(c *Cycle, candidates []*snapshot.Node, listed []v1.TopologySpreadConstraint) Scorer {
	own := len(c.Pod.Object.Spec.TopologySpreadConstraints) > 0
	strict := own || listed != nil
	constraints, err := spreadConstraints(c.Pod.Object, v1.ScheduleAnyway)
	switch {
	case own:
	case listed != nil:
		constraints, err = listedConstraints(c, listed, v1.ScheduleAnyway)
	default:
		constraints = defaultConstraints(c)
	}
	if err != nil || len(constraints) == 0 {
		return nil
	}
	s := &spreadScore{strict: strict}
	s.prepare(c, constraints, candidates)
	return s
}

// spreadScore holds, for each constraint, the counts by domain; for the hostname label, by node.
type spreadScore struct {
	strict      bool // a candidate without one of the labels is not scored
	constraints []constraint
	counts      []*snapshot.Index
	weights     []float64
}

func (s *spreadScore) prepare(c *Cycle, constraints []constraint, candidates []*snapshot.Node) {
	s.constraints = constraints
	var labelled []constraint
	if s.strict {
		labelled = constraints
	}
	scored := 0
	values := make([]map[string]struct{}, len(constraints))
	for _, n := range candidates {
		if s.ignores(n) {
			continue
		}
		scored++
		for i := range constraints {
			if constraints[i].key == v1.LabelHostname {
				continue
			}
			if values[i] == nil {
				values[i] = make(map[string]struct{})
			}
			values[i][n.Object.Labels[constraints[i].key]] = struct{}{}
		}
	}
	for i := range constraints {
		k, size := &constraints[i], len(values[i])
		if k.key == v1.LabelHostname {
			size = scored
			s.counts = append(s.counts, k.hosts(c))
		} else {
			s.counts = append(s.counts, k.domains(c, labelled))
		}
		s.weights = append(s.weights, math.Log(float64(size+2)))
	}
}

func (s *spreadScore) ignores(n *snapshot.Node) bool {
	return s.strict && !hasKeys(s.constraints, n.Object.Labels)
}

// Score implements Scorer: it grows with the number of pods, and Normalize reverses it.
func (s *spreadScore) Score(n *snapshot.Node) int64 {
	if s.ignores(n) {
		return 0
	}
	var sum float64
	for i := range s.constraints {
		k := &s.constraints[i]
		value, ok := n.Object.Labels[k.key]
		if !ok {
			continue
		}
		count := 0
		if k.key == v1.LabelHostname {
			count = s.counts[i].Share(n)
		} else {
			count = s.counts[i].Sum(snapshot.Domain{Key: k.key, Value: value})
		}
		sum += float64(count)*s.weights[i] + float64(k.maxSkew-1)
	}
	return int64(math.Round(sum))
}

// Normalize implements Scorer.
func (s *spreadScore) Normalize(nodes []*snapshot.Node, scores []int64) {
	lowest, highest := int64(math.MaxInt64), int64(0)
	for i, score := range scores {
		if !s.ignores(nodes[i]) {
			lowest, highest = min(lowest, score), max(highest, score)
		}
	}
	for i, score := range scores {
		switch {
		case s.ignores(nodes[i]):
			scores[i] = 0
		case highest == 0:
			scores[i] = MaxScore
		default:
			scores[i] = MaxScore * (highest + lowest - score) / highest
		}
	}
}

// defaultConstraints returns the constraints of a pod that has none.
func defaultConstraints(c *Cycle) []constraint {
	selector := siblings(c)
	if selector.Empty() {
		return nil
	}
	return []constraint{
		{maxSkew: 3, key: v1.LabelHostname, selector: selector, honorAffinity: true},
		{maxSkew: 5, key: v1.LabelTopologyZone, selector: selector, honorAffinity: true},
	}
}

// siblings selects the pods of the services that select this pod, narrowed to those of its controller.
func siblings(c *Cycle) labels.Selector {
	p := c.Pod.Object
	set := labels.Set{}
	if services, err := c.Listers.Services.Services(p.Namespace).List(labels.Everything()); err == nil {
		for _, svc := range services {
			if svc.Spec.Selector != nil && labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(p.Labels)) {
				set = labels.Merge(set, svc.Spec.Selector)
			}
		}
	}
	owner := metav1.GetControllerOfNoCopy(p)
	selector := labels.NewSelector()
	if owner != nil && owner.Kind == "ReplicationController" {
		if rc, err := c.Listers.Controllers.ReplicationControllers(p.Namespace).Get(owner.Name); err == nil {
			set = labels.Merge(set, rc.Spec.Selector)
		}
	}
	if len(set) > 0 {
		selector = set.AsSelector()
	}
	if parsed, err := metav1.LabelSelectorAsSelector(ownerSelector(c, owner)); err == nil {
		if more, ok := parsed.Requirements(); ok {
			selector = selector.Add(more...)
		}
	}
	return selector
}

func ownerSelector(c *Cycle, owner *metav1.OwnerReference) *metav1.LabelSelector {
	if owner == nil {
		return nil
	}
	switch owner.Kind {
	case "ReplicaSet":
		if rs, err := c.Listers.ReplicaSets.ReplicaSets(c.Pod.Object.Namespace).Get(owner.Name); err == nil {
			return rs.Spec.Selector
		}
	case "StatefulSet":
		if ss, err := c.Listers.StatefulSets.StatefulSets(c.Pod.Object.Namespace).Get(owner.Name); err == nil {
			return ss.Spec.Selector
		}
	}
	return nil
}
