package snapshot

import "math"

// indexLimit bounds how many indexes a snapshot keeps; beyond it the least recently used is removed.
const indexLimit = 512

// Domain is one value of one topology label.
type Domain struct{ Key, Value string }

// Emit adds count to a domain for the present node. A count of zero adds the domain too.
type Emit func(key, value string, count int)

// Index sums a number that each node contributes, by topology domain: the pods that match a selector, or the weights of terms. It is kept
// from one pod to the next and recounts only the nodes that have changed. So the thousandth replica with the same constraint costs a recount
// of the nodes that changed since the replica before, and not of the whole cluster.
type Index struct {
	contribute func(n *Node, emit Emit)
	shares     [][]share // by slot
	domains    map[Domain]*domainSum
	total      int
	// histogram counts the domains by their sum; lowest is a lower bound of the sums, from which Min searches.
	histogram map[int]int
	lowest    int

	epoch uint64 // of the snapshot's list of nodes
	seen  uint64 // position in the snapshot's log of changes
	used  uint64
}

type share struct {
	at    Domain
	count int
}

type domainSum struct{ nodes, sum int }

// Index returns the up-to-date index with this key. Two calls with one key must pass an equal contribute, which may depend on the node
// only. With the empty key the index is not kept.
func (s *Snapshot) Index(key string, contribute func(n *Node, emit Emit)) *Index {
	x, ok := s.indexes[key]
	if key == "" || !ok {
		x = &Index{contribute: contribute}
	}
	if key != "" && !ok {
		s.keep(key, x)
	}
	s.uses++
	x.used = s.uses
	x.sync(s)
	return x
}

func (s *Snapshot) keep(key string, x *Index) {
	if s.indexes == nil {
		s.indexes = make(map[string]*Index)
	}
	if len(s.indexes) >= indexLimit {
		oldest, used := "", uint64(math.MaxUint64)
		for k, other := range s.indexes {
			if other.used < used {
				oldest, used = k, other.used
			}
		}
		delete(s.indexes, oldest)
	}
	s.indexes[key] = x
}

func (x *Index) sync(s *Snapshot) {
	if x.shares == nil || x.epoch != s.epoch || x.seen < s.logStart {
		x.rebuild(s)
		return
	}
	for _, slot := range s.log[x.seen-s.logStart:] {
		x.recount(s.Nodes[slot])
	}
	x.seen = s.logStart + uint64(len(s.log))
}

func (x *Index) rebuild(s *Snapshot) {
	x.shares = make([][]share, len(s.Nodes))
	x.domains, x.histogram = make(map[Domain]*domainSum), make(map[int]int)
	x.total, x.lowest = 0, math.MaxInt
	for _, n := range s.Nodes {
		x.recount(n)
	}
	x.epoch, x.seen = s.epoch, s.logStart+uint64(len(s.log))
}

func (x *Index) recount(n *Node) {
	old := x.shares[n.slot]
	fresh := make([]share, 0, len(old))
	x.contribute(n, func(key, value string, count int) {
		fresh = append(fresh, share{Domain{key, value}, count})
	})
	// The new shares are added before the old ones are removed, so that a domain that stays is not removed in between.
	for _, s := range fresh {
		x.add(s.at, 1, s.count)
	}
	for _, s := range old {
		x.add(s.at, -1, -s.count)
	}
	x.shares[n.slot] = fresh
}

func (x *Index) add(at Domain, nodes, count int) {
	d, ok := x.domains[at]
	if !ok {
		d = new(domainSum)
		x.domains[at] = d
	} else {
		x.leave(d.sum)
	}
	x.total += count
	d.nodes += nodes
	d.sum += count
	if d.nodes == 0 {
		delete(x.domains, at)
		return
	}
	x.histogram[d.sum]++
	x.lowest = min(x.lowest, d.sum)
}

func (x *Index) leave(sum int) {
	if x.histogram[sum]--; x.histogram[sum] == 0 {
		delete(x.histogram, sum)
	}
}

// Sum returns the sum of a domain.
func (x *Index) Sum(at Domain) int {
	if d, ok := x.domains[at]; ok {
		return d.sum
	}
	return 0
}

// Total returns the sum over all domains.
func (x *Index) Total() int { return x.total }

// Len returns the number of domains.
func (x *Index) Len() int { return len(x.domains) }

// Min returns the lowest sum of any domain, math.MaxInt when there is no domain.
func (x *Index) Min() int {
	if len(x.histogram) == 0 {
		x.lowest = math.MaxInt
	} else if x.histogram[x.lowest] == 0 {
		x.lowest = math.MaxInt
		for sum := range x.histogram {
			x.lowest = min(x.lowest, sum)
		}
	}
	return x.lowest
}

// Each calls fn for every domain.
func (x *Index) Each(fn func(at Domain, sum int)) {
	for at, d := range x.domains {
		fn(at, d.sum)
	}
}

// Share returns the sum that one node contributes to all domains, as of the last Snapshot.Index call for x. For a clone it returns the
// original's: x does not see pods that are added to a clone or removed from it.
func (x *Index) Share(n *Node) int {
	sum := 0
	for _, s := range x.shares[n.slot] {
		sum += s.count
	}
	return sum
}
