package deviceplugin

import (
	"cmp"
	"maps"
	"slices"

	"github.com/balsahq/balsa/node/topology"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// chosen collects the devices for one request, in the order in which they are taken.
type chosen struct {
	want  int
	ids   []string
	taken map[string]bool
}

func (c *chosen) missing() int { return c.want - len(c.ids) }

// take adds devices that are not taken yet until none is missing.
func (c *chosen) take(from []string) {
	for _, id := range from {
		if c.missing() == 0 {
			return
		}
		if !c.taken[id] {
			c.taken[id] = true
			c.ids = append(c.ids, id)
		}
	}
}

// near splits available devices: on a NUMA node of the affinity, on another node, on no node that the plug-in has said. No
// affinity leaves all in the last part. Each part begins with the devices of the nodes that have the fewest, so that large
// groups stay whole.
func near(available map[string]device, affinity topology.Nodes) (aligned, others, anywhere []string) {
	perNode := map[int]int{}
	for _, d := range available {
		for _, n := range d.nodes.IDs() {
			perNode[n]++
		}
	}
	if affinity == 0 || len(perNode) == 0 {
		return nil, nil, sortedKeys(available)
	}
	group := func(id string) int { // size of the smallest group that the device belongs to
		size := len(available)
		for _, n := range available[id].nodes.IDs() {
			if affinity&available[id].nodes == 0 || affinity.Has(n) {
				size = min(size, perNode[n])
			}
		}
		return size
	}
	ids := sortedKeys(available)
	slices.SortStableFunc(ids, func(a, b string) int { return cmp.Compare(group(a), group(b)) })
	for _, id := range ids {
		switch nodes := available[id].nodes; {
		case nodes == 0:
			anywhere = append(anywhere, id)
		case nodes&affinity != 0:
			aligned = append(aligned, id)
		default:
			others = append(others, id)
		}
	}
	return aligned, others, anywhere
}

// intersect returns those of a that are in b, in the order of a.
func intersect(a, b []string) []string {
	in := make(map[string]bool, len(b))
	for _, id := range b {
		in[id] = true
	}
	return slices.DeleteFunc(slices.Clone(a), func(id string) bool { return !in[id] })
}

// hints returns from which NUMA nodes want devices can be had, of the available ones and those to reuse, which have to be
// among them. Preferred are the fewest nodes from which as many could be had if none was in use.
func hints(all map[string]device, available, reuse map[string]bool, want int, machine topology.Nodes) []topology.Hint {
	var nodes topology.Nodes
	for _, d := range all {
		nodes |= d.nodes & machine
	}
	if nodes == 0 {
		nodes = machine
	}
	fewest := nodes.Count()
	out := []topology.Hint{}
	for _, set := range nodes.Subsets() {
		present, free, excluded := 0, 0, false
		for id, d := range all {
			inside := d.nodes&set != 0
			if inside {
				present++
			}
			if available[id] && inside || reuse[id] && inside {
				free++
			}
			excluded = excluded || reuse[id] && d.nodes != 0 && !inside
		}
		if present >= want {
			fewest = min(fewest, set.Count())
		}
		if !excluded && free >= want {
			out = append(out, topology.Hint{Nodes: set})
		}
	}
	for i := range out {
		out[i].Preferred = out[i].Nodes.Count() == fewest
	}
	return out
}
