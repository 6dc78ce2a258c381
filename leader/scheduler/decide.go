package scheduler

import (
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/balsahq/balsa/leader/scheduler/profile"
	"github.com/balsahq/balsa/leader/scheduler/rules"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

// minCandidates and minCandidatePercent bound how many nodes that admit a pod end a search, see candidates. The values are upstream's.
const (
	minCandidates       = 100
	minCandidatePercent = 5
)

// decider chooses nodes. Its decisions depend only on the cycle, on the nominated pods, on rand and on where the last search ended. It
// is used by one goroutine.
type decider struct {
	filters []rules.Filter
	scores  []rules.Score
	rand    *rand.Rand
	// percentage ends searches among more than minCandidates nodes; 0: as candidates says.
	percentage int
	preemption profile.Preemption
	nominated  func(node string) []*snapshot.Pod // nil: no pod is nominated

	start    int // index at which the next search begins, so that searches cover all nodes in turn
	refusals []*rules.Refusal
	nodes    []*snapshot.Node
	sums     []int64
	raw      []int64
}

func newDecider(p profile.Profile, random *rand.Rand) *decider {
	return &decider{filters: p.Filters, scores: p.Scores, rand: random, percentage: p.Percentage, preemption: p.Preemption}
}

// preparedCheck is a filter that may refuse the pod of the cycle on some node.
type preparedCheck struct {
	rule  string
	check rules.Check
}

// verdict is the outcome of a search.
type verdict struct {
	node *snapshot.Node // nil: refused everywhere
	// The fields below are set when node is nil. refusals has the order of Snapshot.Nodes; an entry is nil where a rules.Narrower left
	// the node out. It is valid until the next search.
	refusals []*rules.Refusal
	overall  *rules.Refusal // for all nodes at once
	absent   string         // the reason for the nodes that were left out
	rules    []string       // the rules that refused
	checks   []preparedCheck
}

// decide finds the best node for the cycle's pod.
func (d *decider) decide(c *rules.Cycle) verdict {
	checks, only, v := d.prepare(c)
	if v.overall != nil {
		return v
	}
	v.checks = checks
	d.search(c, &v, only)
	if v.overall != nil {
		return v
	}
	switch len(d.nodes) {
	case 0:
		return v
	case 1:
		v.node = d.nodes[0]
		return v
	}
	v.node = d.best(c)
	return v
}

// prepare prepares every filter for the pod. only are the names of the nodes to search, nil for all.
func (d *decider) prepare(c *rules.Cycle) (checks []preparedCheck, only []string, v verdict) {
	checks = make([]preparedCheck, 0, len(d.filters))
	for i := range d.filters {
		f := &d.filters[i]
		check, refusal := f.Prepare(c)
		if refusal != nil {
			v.overall, v.rules = refusal, []string{f.Name}
			return nil, nil, v
		}
		if check == nil {
			continue
		}
		checks = append(checks, preparedCheck{f.Name, check})
		if n, ok := check.(rules.Narrower); ok {
			if names, narrow := n.Only(); narrow {
				only = names
				v.absent = "node(s) didn't satisfy plugin(s) [" + f.Name + "]"
			}
		}
	}
	return checks, only, v
}

// search fills d.nodes with nodes that admit the pod, at most candidates of them.
func (d *decider) search(c *rules.Cycle, v *verdict, only []string) {
	all := c.Snapshot.Nodes
	d.nodes = d.nodes[:0]
	d.refusals = slices.Grow(d.refusals[:0], len(all))[:len(all)]
	clear(d.refusals)
	v.refusals = d.refusals
	refused := make(map[string]struct{})
	if v.absent != "" {
		d.searchNamed(c, v, only, refused)
	} else {
		d.searchAll(c, v, refused)
	}
	if len(d.nodes) == 0 && v.overall == nil {
		v.rules = slices.Sorted(maps.Keys(refused))
	}
}

func (d *decider) searchNamed(c *rules.Cycle, v *verdict, names []string, refused map[string]struct{}) {
	for _, name := range names {
		n := c.Snapshot.Node(name)
		if n == nil {
			continue
		}
		if refusal, rule := d.admit(v.checks, n); refusal != nil {
			if v.aborted(refusal, rule) {
				return
			}
			d.refusals[n.Slot()] = refusal
			refused[rule] = struct{}{}
			continue
		}
		d.nodes = append(d.nodes, n)
	}
	if len(refused) == 0 {
		refused["NodeAffinity"] = struct{}{}
	}
}

func (d *decider) searchAll(c *rules.Cycle, v *verdict, refused map[string]struct{}) {
	all := c.Snapshot.Nodes
	enough := candidates(len(all), d.percentage)
	examined := 0
	for ; examined < len(all) && len(d.nodes) < enough; examined++ {
		n := all[(d.start+examined)%len(all)]
		refusal, rule := d.admit(v.checks, n)
		if refusal == nil {
			d.nodes = append(d.nodes, n)
			continue
		}
		if v.aborted(refusal, rule) {
			return
		}
		d.refusals[n.Slot()] = refusal
		refused[rule] = struct{}{}
	}
	if len(all) > 0 {
		d.start = (d.start + examined) % len(all)
	}
}

// aborted ends the search when a refusal of one node is one of all.
func (v *verdict) aborted(refusal *rules.Refusal, rule string) bool {
	if !refusal.Abort {
		return false
	}
	v.overall, v.rules = refusal, []string{rule}
	return true
}

// admit runs the checks on a node: with the pods that are nominated for it, because they may come, and without them, because they may
// not.
func (d *decider) admit(checks []preparedCheck, n *snapshot.Node) (*rules.Refusal, string) {
	if d.nominated != nil {
		if with, withChecks := d.withNominated(checks, n); with != nil {
			if refusal, rule := ask(withChecks, with); refusal != nil {
				return refusal, rule
			}
		}
	}
	return ask(checks, n)
}

func ask(checks []preparedCheck, n *snapshot.Node) (*rules.Refusal, string) {
	for i := range checks {
		if refusal := checks[i].check.Admit(n); refusal != nil {
			return refusal, checks[i].rule
		}
	}
	return nil, ""
}

// withNominated returns the node with the pods that are nominated for it, and checks that count them; nil when there are none.
func (d *decider) withNominated(checks []preparedCheck, n *snapshot.Node) (*snapshot.Node, []preparedCheck) {
	pods := d.nominated(n.Name())
	if len(pods) == 0 {
		return nil, nil
	}
	with, cloned := n.Clone(), cloneChecks(checks)
	for _, p := range pods {
		change(cloned, with, p, 1)
	}
	return with, cloned
}

func cloneChecks(checks []preparedCheck) []preparedCheck {
	cloned := slices.Clone(checks)
	for i := range cloned {
		if t, ok := cloned[i].check.(rules.Tracker); ok {
			cloned[i].check = t.Clone()
		}
	}
	return cloned
}

// change adds (1) or removes (-1) a pod on a cloned node and in the cloned checks.
func change(checks []preparedCheck, n *snapshot.Node, p *snapshot.Pod, by int) {
	if by > 0 {
		n.Add(p)
	} else {
		n.Remove(p.Object.UID)
	}
	for i := range checks {
		if t, ok := checks[i].check.(rules.Tracker); ok {
			t.Change(p, n, by)
		}
	}
}

// best scores d.nodes and returns one with the highest score, at random.
func (d *decider) best(c *rules.Cycle) *snapshot.Node {
	d.sums = slices.Grow(d.sums[:0], len(d.nodes))[:len(d.nodes)]
	d.raw = slices.Grow(d.raw[:0], len(d.nodes))[:len(d.nodes)]
	clear(d.sums)
	for i := range d.scores {
		scorer := d.scores[i].Prepare(c, d.nodes)
		if scorer == nil {
			continue
		}
		for j, n := range d.nodes {
			d.raw[j] = scorer.Score(n)
		}
		scorer.Normalize(d.nodes, d.raw)
		for j, s := range d.raw {
			d.sums[j] += s * d.scores[i].Weight
		}
	}
	chosen, ties := 0, 1
	for i := 1; i < len(d.sums); i++ {
		switch {
		case d.sums[i] > d.sums[chosen]:
			chosen, ties = i, 1
		case d.sums[i] == d.sums[chosen]:
			if ties++; d.rand.IntN(ties) == 0 {
				chosen = i
			}
		}
	}
	return d.nodes[chosen]
}

// candidates returns after how many admitting nodes a search among n nodes ends: all of a small cluster, and a share that shrinks with
// the size of a large one, as upstream's, unless percent is given.
func candidates(n, percent int) int {
	if n < minCandidates {
		return n
	}
	if percent == 0 {
		percent = max(50-n/125, minCandidatePercent)
	}
	return max(n*percent/100, minCandidates)
}
