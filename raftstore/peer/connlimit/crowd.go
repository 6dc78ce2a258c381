package connlimit

import "slices"

// State says how a connection is used.
type State struct {
	// Busy: something is under way on it that ends with it.
	Busy bool
	// Last is when it was used last, in any unit that grows.
	Last int64
}

// Member is a connection in a Crowd, as a pointer.
type Member interface {
	comparable
	State() State
}

// Crowd is members by group. The zero value is empty and ready. What its methods cost grows with the size of a group at most,
// not with the number of groups.
type Crowd[K comparable, M Member] struct {
	groups map[K]*group[M]
	sizes  map[int]map[K]struct{} // which groups have that many members
	most   int                    // the largest of sizes
	n      int
}

type group[M Member] struct{ members []M }

// sampled is how many of equally large groups are compared. More would cost each newcomer time when there are thousands of
// groups of one member; which ones are compared is random.
const sampled = 16

// Len returns how many members there are in all groups.
func (c *Crowd[K, M]) Len() int { return c.n }

// Of returns how many members a group has.
func (c *Crowd[K, M]) Of(key K) int {
	if g := c.groups[key]; g != nil {
		return len(g.members)
	}
	return 0
}

// Groups returns how many groups have members.
func (c *Crowd[K, M]) Groups() int { return len(c.groups) }

// Add puts m into a group. It must be in none.
func (c *Crowd[K, M]) Add(key K, m M) {
	if c.groups == nil {
		c.groups, c.sizes = map[K]*group[M]{}, map[int]map[K]struct{}{}
	}
	g := c.groups[key]
	if g == nil {
		g = &group[M]{}
		c.groups[key] = g
	}
	g.members = append(g.members, m)
	c.n++
	c.resize(key, len(g.members)-1, len(g.members))
}

// Remove takes m out of a group, if it is in it.
func (c *Crowd[K, M]) Remove(key K, m M) {
	g := c.groups[key]
	if g == nil {
		return
	}
	i := slices.Index(g.members, m)
	if i < 0 {
		return
	}
	last := len(g.members) - 1
	var none M
	g.members[i], g.members[last] = g.members[last], none
	g.members = g.members[:last]
	c.n--
	c.resize(key, last+1, last)
}

// resize notes that a group has after members and had before.
func (c *Crowd[K, M]) resize(key K, before, after int) {
	if before > 0 {
		delete(c.sizes[before], key)
		if len(c.sizes[before]) == 0 {
			delete(c.sizes, before)
		}
	}
	if after == 0 {
		delete(c.groups, key)
	} else {
		if c.sizes[after] == nil {
			c.sizes[after] = map[K]struct{}{}
		}
		c.sizes[after][key] = struct{}{}
	}
	c.most = max(c.most, after)
	for c.most > 0 && c.sizes[c.most] == nil {
		c.most--
	}
}

// Place says whether there is room for one more of a group, of which there may be each, and total of all. victim is who has
// to go for it, if anybody has; ok is false when nobody does, and the newcomer is refused.
//
// A group that is full, or as large as any, makes room itself, by the member that is idle for the longest. Otherwise the
// largest group does: by such a member, or, if it is more than one ahead, by the newest of those that are busy.
func (c *Crowd[K, M]) Place(key K, each, total int) (victim M, found, ok bool) {
	own := c.Of(key)
	if own < each && c.n < total {
		return victim, false, true
	}
	if own < each && c.most > own {
		victim, found = c.ofLargest(c.most > own+1)
	}
	if !found {
		victim, found = idlest(c.groups[key])
	}
	return victim, found, found
}

// ofLargest returns the member of the largest groups that has been idle for the longest; failing that, if busy ones may be
// taken, one of those.
func (c *Crowd[K, M]) ofLargest(busyToo bool) (victim M, found bool) {
	looked := 0
	for key := range c.sizes[c.most] {
		if m, ok := idlest(c.groups[key]); ok && (!found || m.State().Last < victim.State().Last) {
			victim, found = m, true
		}
		if looked++; looked == sampled {
			break
		}
	}
	if found || !busyToo {
		return victim, found
	}
	for key := range c.sizes[c.most] {
		return newest(c.groups[key])
	}
	return victim, false
}

// idlest returns the member that is not busy and was used the longest ago.
func idlest[M Member](g *group[M]) (out M, found bool) {
	if g == nil {
		return out, false
	}
	var since int64
	for _, m := range g.members {
		if s := m.State(); !s.Busy && (!found || s.Last < since) {
			out, since, found = m, s.Last, true
		}
	}
	return out, found
}

// newest returns the member that was used last.
func newest[M Member](g *group[M]) (out M, found bool) {
	if g == nil {
		return out, false
	}
	var since int64
	for _, m := range g.members {
		if s := m.State(); !found || s.Last > since {
			out, since, found = m, s.Last, true
		}
	}
	return out, found
}

// All returns every member, in no order.
func (c *Crowd[K, M]) All() []M {
	out := make([]M, 0, c.n)
	for _, g := range c.groups {
		out = append(out, g.members...)
	}
	return out
}
