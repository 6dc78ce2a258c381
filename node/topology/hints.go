package topology

import (
	"cmp"
	"math/bits"
	"slices"
)

// MaxNode is the highest number of a NUMA node that a set can hold.
const MaxNode = 63

// Nodes is a set of NUMA nodes: bit n stands for node n.
type Nodes uint64

// NodesOf returns the set of these nodes. Numbers outside 0 to MaxNode are left out.
func NodesOf(ids ...int) (n Nodes) {
	for _, id := range ids {
		if id >= 0 && id <= MaxNode {
			n |= 1 << id
		}
	}
	return n
}

// Has reports whether node id is in the set.
func (n Nodes) Has(id int) bool { return id >= 0 && id <= MaxNode && n&(1<<id) != 0 }

// Count returns how many nodes are in the set.
func (n Nodes) Count() int { return bits.OnesCount64(uint64(n)) }

// IDs lists the nodes in ascending order.
func (n Nodes) IDs() (ids []int) {
	for rest := uint64(n); rest != 0; rest &= rest - 1 {
		ids = append(ids, bits.TrailingZeros64(rest))
	}
	return ids
}

// Subsets lists all subsets of n that are not empty, the smallest first; there are 2^Count-1 of them.
func (n Nodes) Subsets() []Nodes {
	var out []Nodes
	for s := n; s != 0; s = (s - 1) & n {
		out = append(out, s)
	}
	slices.SortFunc(out, compareWidth)
	return out
}

// compareWidth orders sets by how few nodes they have, then by the numbers of the nodes.
func compareWidth(a, b Nodes) int {
	return cmp.Or(cmp.Compare(a.Count(), b.Count()), cmp.Compare(a, b))
}

// Hint says that a request can be served from these NUMA nodes. An empty set means that the place does not matter.
type Hint struct {
	Nodes     Nodes
	Preferred bool
}

// Hints holds the hints of one provider by resource. A resource with nil hints has no preference; one whose list is empty
// and not nil cannot be served at all.
type Hints map[string][]Hint
