package rules

import (
	"math"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

// hardTermWeight is what another pod's required affinity to this one counts when nodes are compared.
const hardTermWeight = 1

// PodAffinityScore prefers domains by the weights of preferred inter-pod terms, of this pod and of the others.
var PodAffinityScore = Score{
	Name:   "InterPodAffinity",
	Weight: 2,
	Prepare: func(c *Cycle, _ []*snapshot.Node) Scorer {
		s := affinityScore{}
		s.ownTerms(c)
		s.otherTerms(c)
		if len(s) == 0 {
			return nil
		}
		return s
	},
}

// affinityScore is the sum of weights by topology label and value.
type affinityScore map[string]map[string]int64

func (s affinityScore) add(n *v1.Node, key string, weight int64) {
	value, ok := n.Labels[key]
	if !ok || weight == 0 {
		return
	}
	if s[key] == nil {
		s[key] = make(map[string]int64)
	}
	s[key][value] += weight
}

func (s affinityScore) ownTerms(c *Cycle) {
	for i := range c.Pod.Preferred {
		t := &c.Pod.Preferred[i]
		tally := c.tallyTerms([]snapshot.Term{t.Term})
		for _, n := range c.Snapshot.Nodes {
			s.add(n.Object, t.TopologyKey, t.Weight*int64(tally.Count(n)))
		}
	}
}

func (s affinityScore) otherTerms(c *Cycle) {
	own := c.NamespaceLabels(c.Pod.Object.Namespace)
	for _, n := range c.Snapshot.Affine {
		for _, p := range n.Affine {
			for i := range p.RequiredAffinity {
				if t := &p.RequiredAffinity[i]; t.Matches(c.Pod.Object, own) {
					s.add(n.Object, t.TopologyKey, hardTermWeight)
				}
			}
			for i := range p.Preferred {
				if t := &p.Preferred[i]; t.Matches(c.Pod.Object, own) {
					s.add(n.Object, t.TopologyKey, t.Weight)
				}
			}
		}
	}
}

// Score implements Scorer.
func (s affinityScore) Score(n *snapshot.Node) int64 {
	var sum int64
	for key, values := range s {
		if value, ok := n.Object.Labels[key]; ok {
			sum += values[value]
		}
	}
	return sum
}

// Normalize implements Scorer: the lowest becomes 0, the highest MaxScore.
func (s affinityScore) Normalize(_ []*snapshot.Node, scores []int64) {
	lowest, highest := int64(math.MaxInt64), int64(math.MinInt64)
	for _, score := range scores {
		lowest, highest = min(lowest, score), max(highest, score)
	}
	for i, score := range scores {
		scores[i] = 0
		if highest > lowest {
			scores[i] = int64(float64(MaxScore) * (float64(score-lowest) / float64(highest-lowest)))
		}
	}
}
