package topology

import (
	"cmp"
	"fmt"
	"slices"
)

// Policy says what becomes of a pod whose resources cannot be near each other.
type Policy string

const (
	// None asks no provider for hints.
	None Policy = "none"
	// BestEffort takes every pod, and places it as well as it can.
	BestEffort Policy = "best-effort"
	// Restricted refuses a pod whose resources are not where each provider prefers them.
	Restricted Policy = "restricted"
	// SingleNUMANode refuses a pod whose resources do not fit on one NUMA node.
	SingleNUMANode Policy = "single-numa-node"
)

// Scope says for what hints are merged.
type Scope string

const (
	// Container places each container by itself.
	Container Scope = "container"
	// Pod gives all containers of a pod the same NUMA nodes.
	Pod Scope = "pod"
)

// MaxNodes is how many NUMA nodes a machine may have for a policy other than None: hints are made for each set of nodes.
const MaxNodes = 8

// Validate returns why the policy and the scope cannot be used.
func Validate(p Policy, s Scope) error {
	if !slices.Contains([]Policy{None, BestEffort, Restricted, SingleNUMANode}, p) {
		return fmt.Errorf("policy %q: give %s, %s, %s or %s", p, None, BestEffort, Restricted, SingleNUMANode)
	}
	if s != Container && s != Pod {
		return fmt.Errorf("scope %q: give %s or %s", s, Container, Pod)
	}
	return nil
}

// Merge chooses from which of the machine's NUMA nodes a request is served, and reports whether the policy admits that.
func Merge(p Policy, machine Nodes, providers []Hints) (best Hint, admitted bool) {
	if p == None {
		return Hint{Preferred: true}, true
	}
	lists := perResource(providers)
	if p == SingleNUMANode {
		lists = onSingleNodes(lists)
	}
	best = choose(machine, lists)
	if p == BestEffort {
		return best, true
	}
	if p == SingleNUMANode && best.Nodes == machine {
		best.Nodes = 0
	}
	return best, best.Preferred
}

// perResource returns a list of hints for each resource of each provider, in a fixed order.
func perResource(providers []Hints) [][]Hint {
	var lists [][]Hint
	for _, hints := range providers {
		for _, list := range hints {
			switch {
			case list == nil:
				lists = append(lists, []Hint{{Preferred: true}})
			case len(list) == 0:
				lists = append(lists, []Hint{{Preferred: false}})
			default:
				lists = append(lists, list)
			}
		}
	}
	return lists
}

// onSingleNodes leaves the preferred hints that are one node or any.
func onSingleNodes(lists [][]Hint) [][]Hint {
	out := make([][]Hint, len(lists))
	for i, list := range lists {
		for _, h := range list {
			if h.Preferred && h.Nodes.Count() <= 1 {
				out[i] = append(out[i], h)
			}
		}
	}
	return out
}

// partial is the intersection of one hint of each list so far. It stays preferred while all of its hints are preferred and
// name the same nodes.
type partial struct {
	nodes     Nodes
	placed    bool // a hint has named nodes
	preferred bool
}

func (m partial) with(h Hint) partial {
	m.preferred = m.preferred && h.Preferred
	if h.Nodes == 0 {
		return m
	}
	m.preferred = m.preferred && (!m.placed || m.nodes == h.Nodes)
	m.nodes, m.placed = m.nodes&h.Nodes, true
	return m
}

// choose returns the best intersection of one hint of each list. Equal intersections are followed once, so the work grows
// with the number of sets of NUMA nodes and not with the product of the lists.
func choose(machine Nodes, lists [][]Hint) Hint {
	merged := map[partial]bool{{nodes: machine, preferred: true}: true}
	widest := 0 // nodes that the most demanding resource needs at least
	for _, list := range lists {
		next := map[partial]bool{}
		for m := range merged {
			for _, h := range list {
				next[m.with(h)] = true
			}
		}
		merged, widest = next, max(widest, narrowest(list))
	}
	best, found := Hint{}, false
	for m := range merged {
		h := Hint{m.nodes, m.preferred}
		if h.Nodes != 0 && (!found || compareHints(h, best, widest) < 0) {
			best, found = h, true
		}
	}
	if !found {
		return Hint{Nodes: machine}
	}
	return best
}

// narrowest returns the size of the smallest set of nodes in a list, 0 when no hint names nodes.
func narrowest(list []Hint) (count int) {
	for _, h := range list {
		if n := h.Nodes.Count(); n > 0 && (count == 0 || n < count) {
			count = n
		}
	}
	return count
}

// compareHints orders hints, the better first: preferred ones, by fewest nodes. Among the others it is best to have just the
// number of nodes that the most demanding resource needs, then the most below that, then the fewest above it.
func compareHints(a, b Hint, widest int) int {
	if a.Preferred != b.Preferred {
		if a.Preferred {
			return -1
		}
		return 1
	}
	if a.Preferred {
		return compareWidth(a.Nodes, b.Nodes)
	}
	return cmp.Or(cmp.Compare(distance(a.Nodes.Count(), widest), distance(b.Nodes.Count(), widest)), cmp.Compare(a.Nodes, b.Nodes))
}

// distance ranks a number of nodes: widest first, then those below in descending order, then those above in ascending order.
func distance(count, widest int) int {
	if count <= widest {
		return widest - count
	}
	return count
}
