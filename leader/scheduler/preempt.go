package scheduler

import (
	"cmp"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/balsahq/balsa/leader/scheduler/rules"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

const (
	reasonNoVictims  = "No preemption victims found for incoming pod"
	reasonNotHelpful = "Preemption is not helpful for scheduling"
	minDryRuns       = 100
	dryRunPercent    = 10
)

// eviction is a node on which the removal of the victims makes room.
type eviction struct {
	node       *snapshot.Node
	victims    []*snapshot.Pod // most important first
	violations int             // victims whose disruption budget does not allow it
}

// preemption is the result of preempt: an eviction, or the reason why none helps.
type preemption struct {
	eviction *eviction
	message  string
	// keep leaves an earlier nomination of the pod as it is.
	keep bool
}

// preempt looks for a node on which the cycle's pod fits once pods with a lower priority are removed.
func (d *decider) preempt(c *rules.Cycle, v verdict, budgets []*policyv1.PodDisruptionBudget, nominated string) preemption {
	if reason := ineligible(c, v, nominated); reason != "" {
		return preemption{message: "preemption: " + reason, keep: true}
	}
	tally := make(reasons)
	var potential []*snapshot.Node
	for i, n := range c.Snapshot.Nodes {
		if v.overall == nil && v.refusals[i] != nil && !v.refusals[i].Final {
			potential = append(potential, n)
		} else {
			tally.add(reasonNotHelpful, 1)
		}
	}
	found, examined := d.evictions(c, v.checks, potential, budgets, tally)
	if len(found) == 0 {
		tally.add(reasonNotHelpful, len(potential)-examined)
		return preemption{message: "preemption: " + tally.text(len(c.Snapshot.Nodes))}
	}
	slices.SortStableFunc(found, compareEvictions)
	return preemption{eviction: &found[0]}
}

// ineligible returns why the pod may not preempt, "" when it may.
func ineligible(c *rules.Cycle, v verdict, nominated string) string {
	p := c.Pod
	if policy := p.Object.Spec.PreemptionPolicy; policy != nil && *policy == v1.PreemptNever {
		return "not eligible due to preemptionPolicy=Never."
	}
	n := c.Snapshot.Node(nominated)
	if n == nil || v.overall != nil || v.refusals[n.Slot()] != nil && v.refusals[n.Slot()].Final {
		return ""
	}
	for _, other := range n.Pods {
		if other.Priority < p.Priority && leavingForPreemption(other.Object) {
			return "not eligible due to a terminating pod on the nominated node."
		}
	}
	return ""
}

func leavingForPreemption(p *v1.Pod) bool {
	return p.DeletionTimestamp != nil && slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonPreemptionByScheduler
	})
}

// evictions tries nodes, from a random one on, until it has enough evictions, at least one of which violates no disruption budget.
func (d *decider) evictions(c *rules.Cycle, checks []preparedCheck, nodes []*snapshot.Node,
	budgets []*policyv1.PodDisruptionBudget, why reasons) (found []eviction, examined int) {
	if len(nodes) == 0 {
		return nil, 0
	}
	percent, least := cmp.Or(d.preemption.Percent, dryRunPercent), cmp.Or(d.preemption.Absolute, minDryRuns)
	enough := min(max(len(nodes)*percent/100, least), len(nodes))
	offset := d.rand.IntN(len(nodes))
	harmless := false
	for ; examined < len(nodes) && !(harmless && len(found) >= enough); examined++ {
		n := nodes[(offset+examined)%len(nodes)]
		e, refusal := d.dryRun(c, checks, n, budgets)
		if refusal != nil {
			why.addAll(refusal.Reasons)
			continue
		}
		harmless = harmless || e.violations == 0
		found = append(found, e)
	}
	return found, examined
}

// dryRun removes every pod with a lower priority from a copy of the node. If the pod then fits, it puts back as many as leave it room:
// first the pods whose disruption budget would be violated, in order of importance, then the others.
func (d *decider) dryRun(c *rules.Cycle, checks []preparedCheck, original *snapshot.Node,
	budgets []*policyv1.PodDisruptionBudget) (eviction, *rules.Refusal) {
	n, checks := original.Clone(), cloneChecks(checks)
	victims := slices.DeleteFunc(slices.Clone(n.Pods), func(p *snapshot.Pod) bool { return p.Priority >= c.Pod.Priority })
	if len(victims) == 0 {
		return eviction{}, &rules.Refusal{Reasons: []string{reasonNoVictims}}
	}
	for _, p := range victims {
		change(checks, n, p, -1)
	}
	if refusal, _ := d.admit(checks, n); refusal != nil {
		return eviction{}, refusal
	}
	slices.SortStableFunc(victims, moreImportant)
	breaking, others := splitByBudget(victims, budgets)
	e := eviction{node: original}
	for i, p := range slices.Concat(breaking, others) {
		change(checks, n, p, 1)
		if refusal, _ := d.admit(checks, n); refusal == nil {
			continue
		}
		change(checks, n, p, -1)
		e.victims = append(e.victims, p)
		if i < len(breaking) {
			e.violations++
		}
	}
	if len(e.victims) == 0 {
		return e, &rules.Refusal{Reasons: []string{reasonNoVictims}}
	}
	slices.SortStableFunc(e.victims, moreImportant)
	return e, nil
}

// moreImportant orders pods by priority, then by the time that they have run.
func moreImportant(a, b *snapshot.Pod) int {
	if a.Priority != b.Priority {
		return cmp.Compare(b.Priority, a.Priority)
	}
	return startOf(a).Compare(startOf(b))
}

// startOf returns when the pod started. A pod that has not started counts as the youngest.
func startOf(p *snapshot.Pod) time.Time {
	if t := p.Object.Status.StartTime; t != nil {
		return t.Time
	}
	return time.Unix(math.MaxInt32, 0)
}

// splitByBudget returns the pods whose eviction violates a disruption budget, and the others, in the same order.
func splitByBudget(pods []*snapshot.Pod, budgets []*policyv1.PodDisruptionBudget) (breaking, others []*snapshot.Pod) {
	left := make([]int32, len(budgets))
	selectors := make([]labels.Selector, len(budgets))
	for i, b := range budgets {
		left[i] = b.Status.DisruptionsAllowed
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || selector.Empty() {
			selector = labels.Nothing()
		}
		selectors[i] = selector
	}
	for _, p := range pods {
		breaks := false
		for i, b := range budgets {
			if b.Namespace != p.Object.Namespace || len(p.Object.Labels) == 0 ||
				!selectors[i].Matches(labels.Set(p.Object.Labels)) {
				continue
			}
			if _, counted := b.Status.DisruptedPods[p.Object.Name]; counted {
				continue
			}
			left[i]--
			breaks = breaks || left[i] < 0
		}
		if breaks {
			breaking = append(breaking, p)
		} else {
			others = append(others, p)
		}
	}
	return breaking, others
}

// compareEvictions puts the least harmful first: fewer violated budgets, then a lower highest priority, a lower sum of priorities, fewer
// victims, and victims that started later.
func compareEvictions(a, b eviction) int {
	return cmp.Or(
		cmp.Compare(a.violations, b.violations),
		cmp.Compare(a.victims[0].Priority, b.victims[0].Priority),
		cmp.Compare(a.prioritySum(), b.prioritySum()),
		cmp.Compare(len(a.victims), len(b.victims)),
		b.earliestStart().Compare(a.earliestStart()),
	)
}

// prioritySum returns the sum of the victims' priorities, each shifted above zero, so that more victims never have a lower sum.
func (e eviction) prioritySum() int64 {
	var sum int64
	for _, p := range e.victims {
		sum += int64(p.Priority) + math.MaxInt32 + 1
	}
	return sum
}

// earliestStart returns the earliest start among the victims with the highest priority.
func (e eviction) earliestStart() time.Time {
	earliest := startOf(e.victims[0])
	for _, p := range e.victims {
		if p.Priority == e.victims[0].Priority && startOf(p).Before(earliest) {
			earliest = startOf(p)
		}
	}
	return earliest
}
