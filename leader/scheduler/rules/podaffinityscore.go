package rules

import (
	"fmt"
	"math"

	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

// hardTermWeight is the weight of another pod's required affinity term that matches this pod. The value is upstream's.
const hardTermWeight = 1

// PodAffinityScore prefers domains by the weights of preferred inter-pod terms, of this pod and of the others.
var PodAffinityScore = PodAffinityScoreWith(hardTermWeight, PreferredTermsCount)

// TermsOfOthers says whether the preferred terms of the pods that run already count for pods without terms of their own.
type TermsOfOthers int

// The values of TermsOfOthers.
const (
	PreferredTermsCount TermsOfOthers = iota
	PreferredTermsIgnored
)

// PodAffinityScoreWith is PodAffinityScore with another weight for the required affinity terms of other pods.
func PodAffinityScoreWith(hard int, others TermsOfOthers) Score {
	return Score{Name: "InterPodAffinity", Weight: 2, Prepare: func(c *Cycle, _ []*snapshot.Node) Scorer {
		s := affinityScore{others: noTerms}
		if others == PreferredTermsCount || len(c.Pod.Preferred) > 0 {
			s.others = c.wishes(hard)
		}
		for i := range c.Pod.Preferred {
			t := &c.Pod.Preferred[i]
			s.own = append(s.own, weighted{t.Weight, t.TopologyKey, c.indexTerms([]snapshot.Term{t.Term})})
		}
		if len(s.own) == 0 && s.others.Len() == 0 {
			return nil
		}
		return s
	}}
}

// affinityScore holds, by domain, the pods that match each preferred term of the pod, and the weights of other pods' terms that match the
// pod.
type affinityScore struct {
	own    []weighted
	others *snapshot.Index
}

type weighted struct {
	weight int64
	key    string
	pods   *snapshot.Index
}

// wishes sums the weights of the terms of other pods that match the cycle's pod. A required term counts as
// hard.
func (c *Cycle) wishes(hard int) *snapshot.Index {
	if len(c.Snapshot.Affine) == 0 {
		return noTerms
	}
	key, pod, own := c.seenByOthers(fmt.Sprintf("wish%d", hard))
	return c.Snapshot.Index(key, func(n *snapshot.Node, emit snapshot.Emit) {
		add := func(t *snapshot.Term, weight int) {
			if value, ok := n.Object.Labels[t.TopologyKey]; ok && t.Matches(pod, own) {
				emit(t.TopologyKey, value, weight)
			}
		}
		for _, p := range n.Affine {
			for i := range p.RequiredAffinity {
				add(&p.RequiredAffinity[i], hard)
			}
			for i := range p.Preferred {
				add(&p.Preferred[i].Term, int(p.Preferred[i].Weight))
			}
		}
	})
}

// Score implements Scorer.
func (s affinityScore) Score(n *snapshot.Node) int64 {
	var sum int64
	for _, w := range s.own {
		if value, ok := n.Object.Labels[w.key]; ok {
			sum += w.weight * int64(w.pods.Sum(snapshot.Domain{Key: w.key, Value: value}))
		}
	}
	if s.others.Len() > 0 {
		for key, value := range n.Object.Labels {
			sum += int64(s.others.Sum(snapshot.Domain{Key: key, Value: value}))
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
