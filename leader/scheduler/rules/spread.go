package rules

import (
	"fmt"
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
	Name:    "PodTopologySpread",
	Prepare: prepareSpread(nil),
	Undo: []queue.Hint{
		{Kind: queue.Pod, Action: queue.Add | queue.Update | queue.Delete, Helps: func(p *v1.Pod, e queue.Event) bool {
			return spreadConcerns(p, podOf(e.Old)) || spreadConcerns(p, podOf(e.New))
		}},
		{Kind: queue.Node, Action: queue.Add | queue.Update | queue.Delete},
	},
}

// TopologySpreadBy are the filter and the score of PodTopologySpread with constraints for pods that have none. The
// constraints have no selectors: they count the pods of the pod's services and of its controller.
func TopologySpreadBy(defaults []v1.TopologySpreadConstraint) (Filter, Score) {
	filter, score := TopologySpread, TopologySpreadScore
	filter.Prepare = prepareSpread(defaults)
	// Which pods a default constraint counts depends on services and controllers, so any pod may help.
	filter.Undo = []queue.Hint{{Kind: queue.Pod, Action: queue.Add | queue.Update | queue.Delete}, {Kind: queue.Node, Action: queue.Add | queue.Update | queue.Delete}}
	score.Prepare = func(c *Cycle, candidates []*snapshot.Node) Scorer { return prepareSpreadScore(c, candidates, defaults) }
	return filter, score
}

func prepareSpread(defaults []v1.TopologySpreadConstraint) func(c *Cycle) (Check, *Refusal) {
	return func(c *Cycle) (Check, *Refusal) {
		constraints, err := spreadConstraints(c.Pod.Object, v1.DoNotSchedule)
		if err == nil && len(c.Pod.Object.Spec.TopologySpreadConstraints) == 0 {
			constraints, err = listedConstraints(c, defaults, v1.DoNotSchedule)
		}
		if err != nil {
			return nil, forbid(err.Error())
		}
		if len(constraints) == 0 {
			return nil, nil
		}
		return newSpread(c, constraints), nil
	}
}

// listedConstraints are those of the defaults with this action, for the cycle's pod.
func listedConstraints(c *Cycle, defaults []v1.TopologySpreadConstraint, when v1.UnsatisfiableConstraintAction) (out []constraint, err error) {
	if len(defaults) == 0 {
		return nil, nil
	}
	selector := siblings(c)
	if selector.Empty() {
		return nil, nil
	}
	for i := range defaults {
		if defaults[i].WhenUnsatisfiable != when {
			continue
		}
		parsed, err := newConstraint(c.Pod.Object, &defaults[i])
		if err != nil {
			return nil, err
		}
		parsed.selector = selector
		out = append(out, parsed)
	}
	return out, nil
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

// domains counts the constraint's pods by the values of its label, on the nodes that count for the pod and have all labels. Pods that are
// being deleted do not count.
func (k *constraint) domains(c *Cycle, labelled []constraint) *snapshot.Index {
	match, eligible := k.matcher(c.Pod.Object.Namespace), k.eligible(c)
	keys := make([]string, len(labelled))
	for i := range labelled {
		keys[i] = labelled[i].key
	}
	key := fmt.Sprintf("spread|%s|%s|%s|%q|%s", c.Pod.Object.Namespace, k.selector, k.key, keys, k.eligibility(c))
	return c.Snapshot.Index(key, func(n *snapshot.Node, emit snapshot.Emit) {
		for _, l := range keys {
			if _, ok := n.Object.Labels[l]; !ok {
				return
			}
		}
		if eligible(n.Object) {
			emit(k.key, n.Object.Labels[k.key], match(n))
		}
	})
}

// hosts counts the constraint's pods node by node.
func (k *constraint) hosts(c *Cycle) *snapshot.Index {
	match := k.matcher(c.Pod.Object.Namespace)
	return c.Snapshot.Index(fmt.Sprintf("hosts|%s|%s", c.Pod.Object.Namespace, k.selector),
		func(n *snapshot.Node, emit snapshot.Emit) { emit("", "", match(n)) })
}

// matcher returns a function that counts the pods of a node which the constraint selects.
func (k *constraint) matcher(namespace string) func(n *snapshot.Node) int {
	selector := k.selector
	if selector.Empty() {
		return func(*snapshot.Node) int { return 0 }
	}
	return func(n *snapshot.Node) int {
		count := 0
		for _, p := range n.Pods {
			if p.Object.Namespace == namespace && p.Object.DeletionTimestamp == nil &&
				selector.Matches(labels.Set(p.Object.Labels)) {
				count++
			}
		}
		return count
	}
}

// eligible returns a function that reports whether the pods of a node count, by the constraint's inclusion policies.
func (k *constraint) eligible(c *Cycle) func(n *v1.Node) bool {
	affinity, taints := k.honorAffinity && c.confined(), k.honorTaints
	required, tolerations := c.Required(), c.Pod.Object.Spec.Tolerations
	return func(n *v1.Node) bool {
		if affinity {
			if ok, _ := required.Match(n); !ok {
				return false
			}
		}
		return !taints || tolerates(tolerations, n.Spec.Taints)
	}
}

// eligibility returns a key that two pods share only if eligible gives the same results for both.
func (k *constraint) eligibility(c *Cycle) string {
	spec := &c.Pod.Object.Spec
	var parts [2]string
	if k.honorAffinity && c.confined() {
		parts[0] = fmt.Sprint(spec.NodeSelector, requiredTerms(spec.Affinity))
	}
	if k.honorTaints {
		parts[1] = fmt.Sprint(spec.Tolerations)
	}
	return fmt.Sprintf("%q", parts)
}

func hasKeys(constraints []constraint, nodeLabels map[string]string) bool {
	for i := range constraints {
		if _, ok := nodeLabels[constraints[i].key]; !ok {
			return false
		}
	}
	return true
}

// spread is the filter's state: for each constraint the matching pods by domain, and the changes that preemption or nominated pods would
// make.
type spread struct {
	constraints []constraint
	namespace   string
	self        []int // whether the pod itself matches
	domains     []*snapshot.Index
	eligible    []func(*v1.Node) bool
	deltas      []map[snapshot.Domain]int // nil until something changes
}

func newSpread(c *Cycle, constraints []constraint) *spread {
	s := &spread{constraints: constraints, namespace: c.Pod.Object.Namespace, deltas: make([]map[snapshot.Domain]int, len(constraints))}
	for i := range constraints {
		k := &constraints[i]
		s.domains = append(s.domains, k.domains(c, constraints))
		s.eligible = append(s.eligible, k.eligible(c))
		self := 0
		if k.selector.Matches(labels.Set(c.Pod.Object.Labels)) {
			self = 1
		}
		s.self = append(s.self, self)
	}
	return s
}

// Admit implements Check: the pods in the node's domain, with this one, may exceed the domain with the fewest by at most maxSkew.
func (s *spread) Admit(n *snapshot.Node) *Refusal {
	for i := range s.constraints {
		k := &s.constraints[i]
		value, ok := n.Object.Labels[k.key]
		if !ok {
			return refusedSpreadLabel
		}
		at := snapshot.Domain{Key: k.key, Value: value}
		if s.domains[i].Sum(at)+s.deltas[i][at]+s.self[i]-s.minimum(i) > k.maxSkew {
			return refusedSpread
		}
	}
	return nil
}

func (s *spread) minimum(i int) int {
	switch {
	case s.domains[i].Len() < s.constraints[i].minDomains:
		return 0
	case len(s.deltas[i]) == 0:
		return min(s.domains[i].Min(), math.MaxInt32)
	}
	lowest := math.MaxInt32
	s.domains[i].Each(func(at snapshot.Domain, sum int) { lowest = min(lowest, sum+s.deltas[i][at]) })
	return lowest
}

// Change implements Tracker.
func (s *spread) Change(p *snapshot.Pod, n *snapshot.Node, by int) {
	if p.Object.Namespace != s.namespace || p.Object.DeletionTimestamp != nil || !hasKeys(s.constraints, n.Object.Labels) {
		return
	}
	for i := range s.constraints {
		k := &s.constraints[i]
		if k.selector.Empty() || !k.selector.Matches(labels.Set(p.Object.Labels)) || !s.eligible[i](n.Object) {
			continue
		}
		if s.deltas[i] == nil {
			s.deltas[i] = make(map[snapshot.Domain]int)
		}
		s.deltas[i][snapshot.Domain{Key: k.key, Value: n.Object.Labels[k.key]}] += by
	}
}

// Clone implements Tracker.
func (s *spread) Clone() Tracker {
	c := *s
	c.deltas = make([]map[snapshot.Domain]int, len(s.deltas))
	for i := range s.deltas {
		c.deltas[i] = maps.Clone(s.deltas[i])
	}
	return &c
}

// spreadConcerns reports whether a constraint of p selects other.
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
