package rules

import (
	"maps"
	"math"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

var (
	refusedSpread      = refuse("node(s) didn't match pod topology spread constraints")
	refusedSpreadLabel = forbid("node(s) didn't match pod topology spread constraints (missing required label)")
)

// TopologySpread refuses nodes where the pod would make a topology spread constraint (DoNotSchedule) too uneven.
var TopologySpread = Filter{
	Name: "PodTopologySpread",
	Prepare: func(c *Cycle) (Check, *Refusal) {
		constraints, err := spreadConstraints(c.Pod.Object, v1.DoNotSchedule)
		if err != nil {
			return nil, forbid(err.Error())
		}
		if len(constraints) == 0 {
			return nil, nil
		}
		return newSpread(c, constraints), nil
	},
	Undo: []queue.Hint{
		{Kind: queue.Pod, Action: queue.Add | queue.Update | queue.Delete, Helps: func(p *v1.Pod, e queue.Event) bool {
			return spreadConcerns(p, podOf(e.Old)) || spreadConcerns(p, podOf(e.New))
		}},
		{Kind: queue.Node, Action: queue.Add | queue.Update | queue.Delete},
	},
}

// constraint is a parsed topology spread constraint.
type constraint struct {
	maxSkew       int
	minDomains    int
	key           string
	selector      labels.Selector
	honorAffinity bool
	honorTaints   bool
}

func spreadConstraints(p *v1.Pod, when v1.UnsatisfiableConstraintAction) ([]constraint, error) {
	var out []constraint
	for i := range p.Spec.TopologySpreadConstraints {
		c := &p.Spec.TopologySpreadConstraints[i]
		if c.WhenUnsatisfiable != when {
			continue
		}
		parsed, err := newConstraint(p, c)
		if err != nil {
			return nil, err
		}
		out = append(out, parsed)
	}
	return out, nil
}

func newConstraint(p *v1.Pod, c *v1.TopologySpreadConstraint) (constraint, error) {
	selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
	if err != nil {
		return constraint{}, err
	}
	same := labels.Set{}
	for _, key := range c.MatchLabelKeys {
		if value, ok := p.Labels[key]; ok {
			same[key] = value
		}
	}
	if len(same) > 0 {
		if more, ok := same.AsSelector().Requirements(); ok {
			selector = selector.Add(more...)
		}
	}
	parsed := constraint{
		maxSkew: int(c.MaxSkew), minDomains: 1, key: c.TopologyKey, selector: selector,
		honorAffinity: c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == v1.NodeInclusionPolicyHonor,
		honorTaints:   c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == v1.NodeInclusionPolicyHonor,
	}
	if c.MinDomains != nil {
		parsed.minDomains = int(*c.MinDomains)
	}
	return parsed, nil
}

// counts tells whether the pods of a node count for the constraint.
func (k *constraint) counts(c *Cycle, n *v1.Node) bool {
	if k.honorAffinity {
		if ok, _ := c.Required().Match(n); !ok {
			return false
		}
	}
	return !k.honorTaints || tolerates(c.Pod.Object.Spec.Tolerations, n.Spec.Taints)
}

// tally counts the pods of the namespace that the selector picks; pods on their way out do not count.
func (k *constraint) tally(c *Cycle) *snapshot.Tally {
	namespace, selector := c.Pod.Object.Namespace, k.selector
	if selector.Empty() {
		return c.Snapshot.Tally("none", func(*snapshot.Pod) bool { return false })
	}
	return c.Snapshot.Tally("spread|"+namespace+"|"+selector.String(), func(p *snapshot.Pod) bool {
		return p.Object.Namespace == namespace && p.Object.DeletionTimestamp == nil &&
			selector.Matches(labels.Set(p.Object.Labels))
	})
}

func hasKeys(constraints []constraint, nodeLabels map[string]string) bool {
	for i := range constraints {
		if _, ok := nodeLabels[constraints[i].key]; !ok {
			return false
		}
	}
	return true
}

// spread is the filter's state: for each constraint the matching pods by domain.
type spread struct {
	cycle       *Cycle
	constraints []constraint
	self        []int // whether the pod itself matches
	domains     []map[string]int
	lowest      []int // cached minimum over the domains; -1 when it must be worked out
}

func newSpread(c *Cycle, constraints []constraint) *spread {
	s := &spread{cycle: c, constraints: constraints}
	tallies := make([]*snapshot.Tally, len(constraints))
	for i := range constraints {
		k := &constraints[i]
		tallies[i] = k.tally(c)
		s.domains = append(s.domains, make(map[string]int))
		s.lowest = append(s.lowest, -1)
		self := 0
		if k.selector.Matches(labels.Set(c.Pod.Object.Labels)) {
			self = 1
		}
		s.self = append(s.self, self)
	}
	for _, n := range c.Snapshot.Nodes {
		if !hasKeys(constraints, n.Object.Labels) {
			continue
		}
		for i := range constraints {
			if constraints[i].counts(c, n.Object) {
				s.domains[i][n.Object.Labels[constraints[i].key]] += tallies[i].Count(n)
			}
		}
	}
	return s
}

// Admit implements Check: the pods in the node's domain, with this one, may exceed the emptiest domain by maxSkew.
func (s *spread) Admit(n *snapshot.Node) *Refusal {
	for i := range s.constraints {
		k := &s.constraints[i]
		domain, ok := n.Object.Labels[k.key]
		if !ok {
			return refusedSpreadLabel
		}
		if s.domains[i][domain]+s.self[i]-s.minimum(i) > k.maxSkew {
			return refusedSpread
		}
	}
	return nil
}

func (s *spread) minimum(i int) int {
	if len(s.domains[i]) < s.constraints[i].minDomains {
		return 0
	}
	if s.lowest[i] < 0 {
		lowest := math.MaxInt32
		for _, count := range s.domains[i] {
			lowest = min(lowest, count)
		}
		s.lowest[i] = lowest
	}
	return s.lowest[i]
}

// Change implements Tracker.
func (s *spread) Change(p *snapshot.Pod, n *snapshot.Node, by int) {
	if p.Object.Namespace != s.cycle.Pod.Object.Namespace || !hasKeys(s.constraints, n.Object.Labels) {
		return
	}
	for i := range s.constraints {
		k := &s.constraints[i]
		if p.Object.DeletionTimestamp != nil || k.selector.Empty() || !k.selector.Matches(labels.Set(p.Object.Labels)) ||
			!k.counts(s.cycle, n.Object) {
			continue
		}
		s.domains[i][n.Object.Labels[k.key]] += by
		s.lowest[i] = -1
	}
}

// Clone implements Tracker.
func (s *spread) Clone() Tracker {
	c := *s
	c.domains = make([]map[string]int, len(s.domains))
	for i := range s.domains {
		c.domains[i] = maps.Clone(s.domains[i])
	}
	c.lowest = append([]int(nil), s.lowest...)
	return &c
}

// spreadConcerns tells whether other counts for a constraint of p.
func spreadConcerns(p, other *v1.Pod) bool {
	if other == nil || other.Namespace != p.Namespace {
		return false
	}
	constraints, err := spreadConstraints(p, v1.DoNotSchedule)
	if err != nil {
		return true
	}
	for i := range constraints {
		if constraints[i].selector.Matches(labels.Set(other.Labels)) {
			return true
		}
	}
	return false
}
