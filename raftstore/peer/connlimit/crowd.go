package connlimit

import "slices"

// State is how a connection is used.
type State struct {
	// Busy: work is under way that ends if the connection is closed.
	Busy bool
	// Last is when it was used last, in any unit of time.
	Last int64
}

// Member is a connection in a Crowd, as a pointer.
type Member interface {
	comparable
	State() State
}

// Crowd is members by group. The zero value is empty and ready. The cost of its methods grows with the size of a group at most, not with
// the number of groups.
type Crowd[K comparable, M Member] struct {
	groups map[K]*group[M]
	sizes  map[int]map[K]struct{} // which groups have that many members
	most   int                    // the largest of sizes
	n      int
}

type group[M Member] struct{ members []M }

// sampled is how many of equally large groups are compared, chosen at random. To compare all would cost each new connection time when there
// are thousands of groups of one member.
const sampled = 16

// Len returns the number of members in all groups.
func (c *Crowd[K, M]) Len() int { return c.n }

// Of returns the number of members in a group.
func (c *Crowd[K, M]) Of(key K) int {
	if g := c.groups[key]; g != nil {
		return len(g.members)
	}
	return 0
}

// Groups returns the number of groups with members.
func (c *Crowd[K, M]) Groups() int { return len(c.groups) }

// Add puts m into a group. m must not be in any group.
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

// Remove takes m out of a group, if m is in it.
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

// resize notes that the size of a group changed from before to after.
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

// Place reports whether there is room for one more member of a group, when a group may have `each` members and all groups together `total`.
// If found is set, victim must be closed to make room; ok is false when there is no room and no victim, and the new connection is refused.
//
// A group that is full, or as large as any other, loses its own member that is idle for the longest. Otherwise the largest group loses
// such a member, or, if it is more than one member ahead, its newest busy one.
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

// ofLargest returns the member of the largest groups that has been idle for the longest. If there is none and busyToo is set, it returns a
// busy one.
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

// idlest returns the member that is not busy and was used longest ago.
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
