package snapshot

import "math"

// indexLimit bounds how many indexes a snapshot remembers; past it the least recently used goes.
const indexLimit = 512

// Domain is one value of one topology label.
type Domain struct{ Key, Value string }

// Emit adds count to a domain on behalf of the node at hand. A count of zero makes the domain known all the same.
type Emit func(key, value string, count int)

// Index sums, by topology domain, something that each node contributes: the pods that match a selector, the weights of
// terms. It is kept from one pod to the next and only asks the nodes that have changed, so that the thousandth replica
// with the same constraint costs what the nodes changed since the last one cost, and not a count of the whole cluster.
type Index struct {
	contribute func(n *Node, emit Emit)
	shares     [][]share // by slot
	domains    map[Domain]*domainSum
	total      int
	// histogram counts the domains by their sum; lowest is where the search for the minimum begins.
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

// Index returns the index under key, brought up to date. key must determine contribute wholly, and contribute must depend
// on nothing but the node; with the empty key the index is made anew.
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
	// First what is new, then what is gone: a domain that stays is never dropped in between.
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

// Sum is what the nodes of a domain contribute together.
func (x *Index) Sum(at Domain) int {
	if d, ok := x.domains[at]; ok {
		return d.sum
	}
	return 0
}

// Total is the sum over all domains.
func (x *Index) Total() int { return x.total }

// Len is the number of domains.
func (x *Index) Len() int { return len(x.domains) }

// Min is the lowest sum of any domain; math.MaxInt when there is none.
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

// Share is the sum of what one node contributes to all domains, as of the last Snapshot.Index call for x. For a clone it
// is what the original contributes: x does not see pods that are added to a clone or removed from it.
func (x *Index) Share(n *Node) int {
	sum := 0
	for _, s := range x.shares[n.slot] {
		sum += s.count
	}
	return sum
}
