package rules

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

var (
	refusedPodAffinity     = forbid("node(s) didn't match pod affinity rules")
	refusedPodAntiAffinity = refuse("node(s) didn't match pod anti-affinity rules")
	refusedByOthers        = refuse("node(s) didn't satisfy existing pods anti-affinity rules")
)

// PodAffinity refuses nodes whose topology domains lack pods that the pod's affinity requires, or have pods that its anti-affinity, or
// theirs, forbids.
var PodAffinity = Filter{
	Name: "InterPodAffinity",
	Prepare: func(c *Cycle) (Check, *Refusal) {
		a := newAffinity(c)
		if len(c.Snapshot.AntiAffine) == 0 && len(c.Pod.RequiredAffinity) == 0 && len(c.Pod.RequiredAntiAffinity) == 0 {
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

// wantsNear reports whether other matches a required affinity term of p. Namespace selectors count as matching.
func wantsNear(p, other *v1.Pod) bool {
	info, err := snapshot.NewPod(p)
	if err != nil || other == nil {
		return true
	}
	return slices.ContainsFunc(info.RequiredAffinity, func(t snapshot.Term) bool {
		return selective(&t) || t.Matches(other, nil)
	})
}

// counts is an index with the changes that preemption or nominated pods would make in it.
type counts struct {
	index *snapshot.Index
	delta map[snapshot.Domain]int
	total int // of delta
}

func (x *counts) at(key, value string) int {
	d := snapshot.Domain{Key: key, Value: value}
	return x.index.Sum(d) + x.delta[d]
}

func (x *counts) change(n *v1.Node, key string, by int) {
	value, ok := n.Labels[key]
	if !ok {
		return
	}
	if x.delta == nil {
		x.delta = make(map[snapshot.Domain]int)
	}
	x.delta[snapshot.Domain{Key: key, Value: value}] += by
	x.total += by
}

// empty reports whether every count is zero. Counts are never negative, so the sum decides.
func (x *counts) empty() bool { return x.index.Total()+x.total == 0 }

func (x counts) clone() counts {
	x.delta = maps.Clone(x.delta)
	return x
}

// affinity counts, by domain: pods that match all required affinity terms; the pods that match each required anti-affinity term; and the
// anti-affinity terms of other pods that match this one.
type affinity struct {
	cycle  *Cycle
	near   counts
	far    []counts
	others counts
}

func newAffinity(c *Cycle) *affinity {
	a := &affinity{cycle: c, others: counts{index: c.unwelcoming()}}
	if near := c.Pod.RequiredAffinity; len(near) > 0 {
		a.near.index = c.indexTerms(near)
	}
	for i := range c.Pod.RequiredAntiAffinity {
		a.far = append(a.far, counts{index: c.indexTerms(c.Pod.RequiredAntiAffinity[i : i+1])})
	}
	return a
}

// unwelcoming counts the required anti-affinity terms of other pods that match the cycle's pod.
func (c *Cycle) unwelcoming() *snapshot.Index {
	if len(c.Snapshot.AntiAffine) == 0 {
		return noTerms
	}
	key, pod, own := c.seenByOthers("far")
	return c.Snapshot.Index(key, func(n *snapshot.Node, emit snapshot.Emit) {
		for _, p := range n.AntiAffine {
			for i := range p.RequiredAntiAffinity {
				t := &p.RequiredAntiAffinity[i]
				if value, ok := n.Object.Labels[t.TopologyKey]; ok && t.Matches(pod, own) {
					emit(t.TopologyKey, value, 1)
				}
			}
		}
	})
}

// noTerms is the index of a cluster without nodes.
var noTerms = snapshot.New().Index("", func(*snapshot.Node, snapshot.Emit) {})

// seenByOthers returns the values that other pods' terms read, and a key made of them: the pod's namespace with its labels, and the pod's
// labels.
func (c *Cycle) seenByOthers(purpose string) (key string, pod *v1.Pod, own labels.Set) {
	pod = c.Pod.Object
	own = c.NamespaceLabels(pod.Namespace)
	return fmt.Sprintf("%s|%s|%s|%s", purpose, pod.Namespace, own, labels.Set(pod.Labels)), pod, own
}

// indexTerms counts the pods that match every one of the terms, by the domains of each term's label.
func (c *Cycle) indexTerms(terms []snapshot.Term) *snapshot.Index {
	var key strings.Builder
	matches := func(p *v1.Pod) bool { return matchesAll(terms, p, nil) }
	for i := range terms {
		t := &terms[i]
		if selective(t) {
			key.Reset()
			matches = func(p *v1.Pod) bool { return matchesAll(terms, p, c) }
			break
		}
		fmt.Fprintf(&key, "near|%q|%t|%s|%s|", t.Namespaces, t.NamespaceSelector.Empty(), t.Selector, t.TopologyKey)
	}
	return c.Snapshot.Index(key.String(), func(n *snapshot.Node, emit snapshot.Emit) {
		count := 0
		for _, p := range n.Pods {
			if matches(p.Object) {
				count++
			}
		}
		for i := range terms {
			if value, ok := n.Object.Labels[terms[i].TopologyKey]; ok && count > 0 {
				emit(terms[i].TopologyKey, value, count)
			}
		}
	})
}

// selective reports whether a term depends on the labels of namespaces.
func selective(t *snapshot.Term) bool {
	requirements, selectable := t.NamespaceSelector.Requirements()
	return selectable && len(requirements) > 0
}

// matchesAll reports whether p matches every term; c provides the labels of namespaces.
func matchesAll(terms []snapshot.Term, p *v1.Pod, c *Cycle) bool {
	var own labels.Set
	if c != nil {
		own = c.NamespaceLabels(p.Namespace)
	}
	for i := range terms {
		if !terms[i].Matches(p, own) {
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

// hasNear reports whether the node's domains have the pods that required affinity needs. The first pod of a group whose affinity selects
// the group itself may go to any node with the topology labels.
func (a *affinity) hasNear(n *snapshot.Node) bool {
	missing := false
	pod := a.cycle.Pod
	for i := range pod.RequiredAffinity {
		key := pod.RequiredAffinity[i].TopologyKey
		value, ok := n.Object.Labels[key]
		if !ok {
			return false
		}
		missing = missing || a.near.at(key, value) <= 0
	}
	return !missing || a.near.empty() && matchesAll(pod.RequiredAffinity, pod.Object, a.cycle)
}

func (a *affinity) hasFar(n *snapshot.Node) bool {
	for i := range a.cycle.Pod.RequiredAntiAffinity {
		key := a.cycle.Pod.RequiredAntiAffinity[i].TopologyKey
		if value, ok := n.Object.Labels[key]; ok && a.far[i].at(key, value) > 0 {
			return true
		}
	}
	return false
}

func (a *affinity) unwelcome(n *snapshot.Node) bool {
	if a.others.empty() {
		return false
	}
	for key, value := range n.Object.Labels {
		if a.others.at(key, value) > 0 {
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
			a.others.change(n.Object, t.TopologyKey, by)
		}
	}
	if matchesAll(c.Pod.RequiredAffinity, p.Object, c) {
		for i := range c.Pod.RequiredAffinity {
			a.near.change(n.Object, c.Pod.RequiredAffinity[i].TopologyKey, by)
		}
	}
	for i := range c.Pod.RequiredAntiAffinity {
		if t := &c.Pod.RequiredAntiAffinity[i]; t.Matches(p.Object, c.NamespaceLabels(p.Object.Namespace)) {
			a.far[i].change(n.Object, t.TopologyKey, by)
		}
	}
}

// Clone implements Tracker.
func (a *affinity) Clone() Tracker {
	c := &affinity{cycle: a.cycle, near: a.near.clone(), others: a.others.clone(), far: slices.Clone(a.far)}
	for i := range c.far {
		c.far[i] = c.far[i].clone()
	}
	return c
}
