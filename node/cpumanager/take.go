package cpumanager

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/balsahq/balsa/node/machine"
	"github.com/balsahq/balsa/node/topology"
)

// level is a group that a CPU belongs to.
type level func(machine.CPU) int

var (
	byNode   level = func(c machine.CPU) int { return c.Node }
	bySocket level = func(c machine.CPU) int { return c.Socket }
	byCore   level = func(c machine.CPU) int { return c.Core }
)

// taker takes CPUs one group after the other.
type taker struct {
	all    []machine.CPU
	free   []machine.CPU
	levels []level // the wider first
	need   int
	taken  []int
}

// take chooses n of the available CPUs: whole NUMA nodes and sockets first, then whole cores, then single CPUs. Among groups
// those with the fewest available CPUs come first, so that large groups stay whole.
func take(t *machine.Topology, available cpuset.CPUSet, n int) (cpuset.CPUSet, error) {
	if available.Size() < n {
		return cpuset.New(), fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", n, available.Size())
	}
	a := &taker{all: t.CPUs, need: n, levels: []level{byNode, bySocket, byCore}}
	if groups(t.CPUs, bySocket) < groups(t.CPUs, byNode) {
		a.levels = []level{bySocket, byNode, byCore}
	}
	for _, c := range t.CPUs {
		if available.Contains(c.ID) {
			a.free = append(a.free, c)
		}
	}
	for _, l := range a.levels {
		a.takeWhole(l)
	}
	a.sort()
	for _, c := range slices.Clone(a.free) {
		if a.need > 0 {
			a.remove([]machine.CPU{c})
		}
	}
	return cpuset.New(a.taken...), nil
}

func groups(cpus []machine.CPU, l level) int { return len(counts(cpus, l)) }

func counts(cpus []machine.CPU, l level) map[int]int {
	n := map[int]int{}
	for _, c := range cpus {
		n[l(c)]++
	}
	return n
}

// sort orders the free CPUs by how few are free in their groups, the wider groups first.
func (a *taker) sort() {
	free := make([]map[int]int, len(a.levels))
	for i, l := range a.levels {
		free[i] = counts(a.free, l)
	}
	slices.SortFunc(a.free, func(x, y machine.CPU) int {
		for i, l := range a.levels {
			if c := cmp.Or(cmp.Compare(free[i][l(x)], free[i][l(y)]), cmp.Compare(l(x), l(y))); c != 0 {
				return c
			}
		}
		return cmp.Compare(x.ID, y.ID)
	})
}

// takeWhole takes the groups of a level of which all CPUs are free and wanted.
func (a *taker) takeWhole(l level) {
	a.sort()
	total, free := counts(a.all, l), counts(a.free, l)
	var order []int
	for _, c := range a.free {
		if g := l(c); !slices.Contains(order, g) && free[g] == total[g] {
			order = append(order, g)
		}
	}
	for _, g := range order {
		if total[g] <= a.need {
			a.remove(slices.DeleteFunc(slices.Clone(a.free), func(c machine.CPU) bool { return l(c) != g }))
		}
	}
}

func (a *taker) remove(cpus []machine.CPU) {
	for _, c := range cpus {
		a.taken = append(a.taken, c.ID)
	}
	a.need -= len(cpus)
	a.free = slices.DeleteFunc(a.free, func(c machine.CPU) bool { return slices.Contains(a.taken, c.ID) })
}

// takeNear chooses n of the available CPUs, of these NUMA nodes as far as they suffice; no node is any.
func takeNear(t *machine.Topology, available cpuset.CPUSet, n int, near topology.Nodes) (cpuset.CPUSet, error) {
	aligned := available.Intersection(t.In(near))
	first, err := take(t, aligned, min(n, aligned.Size()))
	if err != nil {
		return first, err
	}
	rest, err := take(t, available.Difference(first), n-first.Size())
	return first.Union(rest), err
}

// hints returns from which NUMA nodes n CPUs can be had, of the available ones and those to reuse, which have to be among
// them. Preferred are the fewest nodes that would suffice if no CPU was taken.
func hints(t *machine.Topology, available, reuse cpuset.CPUSet, n int) []topology.Hint {
	out, fewest := []topology.Hint{}, t.Nodes().Count()
	for _, set := range t.Nodes().Subsets() {
		in := t.In(set)
		if in.Size() >= n {
			fewest = min(fewest, set.Count())
		}
		if reuse.IsSubsetOf(in) && available.Union(reuse).Intersection(in).Size() >= n {
			out = append(out, topology.Hint{Nodes: set})
		}
	}
	for i := range out {
		out[i].Preferred = out[i].Nodes.Count() == fewest
	}
	return out
}
