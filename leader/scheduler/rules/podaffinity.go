package rules

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

var (
	refusedPodAffinity     = forbid("node(s) didn't match pod affinity rules")
	refusedPodAntiAffinity = refuse("node(s) didn't match pod anti-affinity rules")
	refusedByOthers        = refuse("node(s) didn't satisfy existing pods anti-affinity rules")
)

// PodAffinity refuses nodes whose domains lack the pods that the pod requires near, or hold pods that it, or they,
// require far.
var PodAffinity = Filter{
	Name: "InterPodAffinity",
	Prepare: func(c *Cycle) (Check, *Refusal) {
		a := newAffinity(c)
		if len(a.others) == 0 && len(c.Pod.RequiredAffinity) == 0 && len(c.Pod.RequiredAntiAffinity) == 0 {
			return nil, nil
		}
		return a, nil
	},
	Undo: []queue.Hint{
		{Kind: queue.Pod, Action: queue.Add | queue.Update, Helps: func(p *v1.Pod, e queue.Event) bool {
			return e.Action == queue.Update || wantsNear(p, podOf(e.New))
		}},
		{Kind: queue.Pod, Action: queue.Delete},
		{Kind: queue.Node, Action: queue.Add | queue.Update},
		{Kind: queue.Namespace, Action: queue.Add | queue.Update},
	},
}

// wantsNear tells whether p requires a pod such as other nearby. Namespace selectors are taken to match.
func wantsNear(p, other *v1.Pod) bool {
	info, err := snapshot.NewPod(p)
	if err != nil || other == nil {
		return true
	}
	return slices.ContainsFunc(info.RequiredAffinity, func(t snapshot.Term) bool {
		return selective(&t) || t.Matches(other, nil)
	})
}

// domain is one value of one topology label.
type domain struct{ key, value string }

type domainCounts map[domain]int

func (d domainCounts) add(n *v1.Node, key string, by int) {
	value, ok := n.Labels[key]
	if !ok || by == 0 {
		return
	}
	at := domain{key, value}
	if d[at] += by; d[at] == 0 {
		delete(d, at)
	}
}

// affinity counts, by domain: pods that match all required affinity terms; pods that match a required anti-affinity
// term; and terms of other pods that want this one far.
type affinity struct {
	cycle             *Cycle
	near, far, others domainCounts
}

func newAffinity(c *Cycle) *affinity {
	a := &affinity{cycle: c, near: domainCounts{}, far: domainCounts{}, others: domainCounts{}}
	own := c.NamespaceLabels(c.Pod.Object.Namespace)
	for _, n := range c.Snapshot.AntiAffine {
		for _, p := range n.AntiAffine {
			for i := range p.RequiredAntiAffinity {
				if t := &p.RequiredAntiAffinity[i]; t.Matches(c.Pod.Object, own) {
					a.others.add(n.Object, t.TopologyKey, 1)
				}
			}
		}
	}
	if near := c.Pod.RequiredAffinity; len(near) > 0 {
		tally := c.tallyTerms(near)
		for _, n := range c.Snapshot.Nodes {
			count := tally.Count(n)
			for i := range near {
				a.near.add(n.Object, near[i].TopologyKey, count)
			}
		}
	}
	for i := range c.Pod.RequiredAntiAffinity {
		t := &c.Pod.RequiredAntiAffinity[i]
		tally := c.tallyTerms(c.Pod.RequiredAntiAffinity[i : i+1])
		for _, n := range c.Snapshot.Nodes {
			a.far.add(n.Object, t.TopologyKey, tally.Count(n))
		}
	}
	return a
}

// tallyTerms counts the pods that match every one of the terms.
func (c *Cycle) tallyTerms(terms []snapshot.Term) *snapshot.Tally {
	var key strings.Builder
	for i := range terms {
		t := &terms[i]
		if selective(t) {
			return c.Snapshot.Tally("", func(p *snapshot.Pod) bool { return c.matchesAll(terms, p.Object) })
		}
		fmt.Fprintf(&key, "term|%q|%t|%s|", t.Namespaces, t.NamespaceSelector.Empty(), t.Selector)
	}
	return c.Snapshot.Tally(key.String(), func(p *snapshot.Pod) bool {
		for i := range terms {
			if !terms[i].Matches(p.Object, nil) {
				return false
			}
		}
		return true
	})
}

// selective tells whether a term depends on the labels of namespaces.
func selective(t *snapshot.Term) bool {
	requirements, selectable := t.NamespaceSelector.Requirements()
	return selectable && len(requirements) > 0
}

func (c *Cycle) matchesAll(terms []snapshot.Term, p *v1.Pod) bool {
	for i := range terms {
		if !terms[i].Matches(p, c.NamespaceLabels(p.Namespace)) {
			return false
		}
	}
	return len(terms) > 0
}

// Admit implements Check.
func (a *affinity) Admit(n *snapshot.Node) *Refusal {
	switch {
	case !a.hasNear(n):
		return refusedPodAffinity
	case a.hasFar(n):
		return refusedPodAntiAffinity
	case a.unwelcome(n):
		return refusedByOthers
	}
	return nil
}

// hasNear tells whether the node is where affinity wants the pod. The first pod of a group that wants its own kind near
// may go anywhere that has the labels.
func (a *affinity) hasNear(n *snapshot.Node) bool {
	missing := false
	for i := range a.cycle.Pod.RequiredAffinity {
		key := a.cycle.Pod.RequiredAffinity[i].TopologyKey
		value, ok := n.Object.Labels[key]
		if !ok {
			return false
		}
		missing = missing || a.near[domain{key, value}] <= 0
	}
	return !missing || len(a.near) == 0 && a.cycle.matchesAll(a.cycle.Pod.RequiredAffinity, a.cycle.Pod.Object)
}

func (a *affinity) hasFar(n *snapshot.Node) bool {
	for i := range a.cycle.Pod.RequiredAntiAffinity {
		key := a.cycle.Pod.RequiredAntiAffinity[i].TopologyKey
		if value, ok := n.Object.Labels[key]; ok && a.far[domain{key, value}] > 0 {
			return true
		}
	}
	return false
}

func (a *affinity) unwelcome(n *snapshot.Node) bool {
	if len(a.others) == 0 {
		return false
	}
	for key, value := range n.Object.Labels {
		if a.others[domain{key, value}] > 0 {
			return true
		}
	}
	return false
}

// Change implements Tracker.
func (a *affinity) Change(p *snapshot.Pod, n *snapshot.Node, by int) {
	c := a.cycle
	own := c.NamespaceLabels(c.Pod.Object.Namespace)
	for i := range p.RequiredAntiAffinity {
		if t := &p.RequiredAntiAffinity[i]; t.Matches(c.Pod.Object, own) {
			a.others.add(n.Object, t.TopologyKey, by)
		}
	}
	if c.matchesAll(c.Pod.RequiredAffinity, p.Object) {
		for i := range c.Pod.RequiredAffinity {
			a.near.add(n.Object, c.Pod.RequiredAffinity[i].TopologyKey, by)
		}
	}
	for i := range c.Pod.RequiredAntiAffinity {
		if t := &c.Pod.RequiredAntiAffinity[i]; t.Matches(p.Object, c.NamespaceLabels(p.Object.Namespace)) {
			a.far.add(n.Object, t.TopologyKey, by)
		}
	}
}

// Clone implements Tracker.
func (a *affinity) Clone() Tracker {
	return &affinity{cycle: a.cycle, near: maps.Clone(a.near), far: maps.Clone(a.far), others: maps.Clone(a.others)}
}
