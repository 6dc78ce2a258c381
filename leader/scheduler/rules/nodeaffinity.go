package rules

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

var refusedAffinity = forbid("node(s) didn't match Pod's node affinity/selector")

// NodeAffinity refuses nodes outside the pod's node selector or required node affinity.
var NodeAffinity = Filter{
	Name: "NodeAffinity",
	Prepare: func(c *Cycle) (Check, *Refusal) {
		spec := &c.Pod.Object.Spec
		terms := requiredTerms(spec.Affinity)
		if !c.confined() {
			return nil, nil
		}
		check := affinityCheck{required: c.Required()}
		if terms != nil {
			check.only, check.narrow = namedNodes(terms.NodeSelectorTerms)
		}
		if check.narrow && len(check.only) == 0 {
			return nil, forbid("pod affinity terms conflict")
		}
		return check, nil
	},
	Undo: []queue.Hint{{Kind: queue.Node, Action: queue.Add | queue.Update, Helps: func(p *v1.Pod, e queue.Event) bool {
		required := nodeaffinity.GetRequiredNodeAffinity(p)
		matches := func(n *v1.Node) bool { ok, err := required.Match(n); return ok && err == nil }
		n, old := nodeOf(e.New), nodeOf(e.Old)
		return n != nil && matches(n) && (old == nil || !matches(old))
	}}},
}

var refusedAddedAffinity = forbid("node(s) didn't match scheduler-enforced node affinity")

// AddedNodeAffinity are the filter and the score of NodeAffinity with an affinity that every pod has beside its own.
func AddedNodeAffinity(added *v1.NodeAffinity) (Filter, Score, error) {
	filter, score := NodeAffinity, PreferredNodes
	if required := added.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		selector, err := nodeaffinity.NewNodeSelector(required)
		if err != nil {
			return filter, score, err
		}
		filter.Prepare = func(c *Cycle) (Check, *Refusal) {
			own, refusal := NodeAffinity.Prepare(c)
			if refusal != nil {
				return nil, refusal
			}
			return addedCheck{own: own, selector: selector}, nil
		}
		filter.Undo = []queue.Hint{{Kind: queue.Node, Action: queue.Add | queue.Update}}
	}
	if preferred := added.PreferredDuringSchedulingIgnoredDuringExecution; len(preferred) > 0 {
		terms, err := nodeaffinity.NewPreferredSchedulingTerms(preferred)
		if err != nil {
			return filter, score, err
		}
		score.Prepare = func(c *Cycle, candidates []*snapshot.Node) Scorer {
			own := PreferredNodes.Prepare(c, candidates)
			return relative{raw: func(n *snapshot.Node) int64 {
				sum := terms.Score(n.Object)
				if own != nil {
					sum += own.Score(n)
				}
				return sum
			}}
		}
	}
	return filter, score, nil
}

// addedCheck is the added affinity and the pod's own, if it has one.
type addedCheck struct {
	own      Check
	selector *nodeaffinity.NodeSelector
}

func (c addedCheck) Admit(n *snapshot.Node) *Refusal {
	if !c.selector.Match(n.Object) {
		return refusedAddedAffinity
	}
	if c.own == nil {
		return nil
	}
	return c.own.Admit(n)
}

func (c addedCheck) Only() ([]string, bool) {
	if n, ok := c.own.(Narrower); ok {
		return n.Only()
	}
	return nil, false
}

func requiredTerms(a *v1.Affinity) *v1.NodeSelector {
	if a == nil || a.NodeAffinity == nil {
		return nil
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

type affinityCheck struct {
	required *nodeaffinity.RequiredNodeAffinity
	only     []string
	narrow   bool
}

func (c affinityCheck) Admit(n *snapshot.Node) *Refusal {
	if ok, err := c.required.Match(n.Object); err != nil || !ok {
		return refusedAffinity
	}
	return nil
}

func (c affinityCheck) Only() ([]string, bool) { return c.only, c.narrow }

// namedNodes returns the nodes that matchFields on metadata.name name, if every term names some. The terms of a DaemonSet's pods do, so that
// one node is checked instead of all.
func namedNodes(terms []v1.NodeSelectorTerm) ([]string, bool) {
	union := make(map[string]struct{})
	for i := range terms {
		names, named := namesOf(terms[i].MatchFields)
		if !named {
			return nil, false
		}
		for _, name := range names {
			union[name] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(union)), len(terms) > 0
}

// namesOf returns the names that satisfy all requirements of a term on metadata.name.
func namesOf(fields []v1.NodeSelectorRequirement) (names []string, named bool) {
	for _, f := range fields {
		if f.Key != metav1.ObjectNameField || f.Operator != v1.NodeSelectorOpIn {
			continue
		}
		if !named {
			names, named = slices.Clone(f.Values), true
			continue
		}
		names = slices.DeleteFunc(names, func(n string) bool { return !slices.Contains(f.Values, n) })
	}
	return names, named
}

// PreferredNodes prefers nodes by the weights of the pod's preferred node affinity.
var PreferredNodes = Score{
	Name:   "NodeAffinity",
	Weight: 2,
	Prepare: func(c *Cycle, _ []*snapshot.Node) Scorer {
		a := c.Pod.Object.Spec.Affinity
		if a == nil || a.NodeAffinity == nil || len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 0 {
			return nil
		}
		terms, err := nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		if err != nil {
			return nil
		}
		return relative{raw: func(n *snapshot.Node) int64 { return terms.Score(n.Object) }}
	},
}
