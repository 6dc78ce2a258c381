package services

import (
	"fmt"
	"maps"
	"slices"
)

// claims map the keys of one kind (addresses or node ports) to their target and owner. If several owners want one key, the
// first by name gets it, independent of the order in which they came.
type claims[K interface {
	comparable
	fmt.Stringer
}] struct {
	now       map[K]Target
	owner     map[K]string
	rivals    map[K]map[string]Target
	was       map[K]Target // the values before the changes that TakeDelta has not returned yet
	recording bool
	ways      *counts[Way]
	version   int // counts the changes of rivals
}

func newClaims[K interface {
	comparable
	fmt.Stringer
}](now map[K]Target, ways *counts[Way]) claims[K] {
	return claims[K]{now: now, owner: make(map[K]string), rivals: make(map[K]map[string]Target), was: make(map[K]Target), ways: ways}
}

// set notes that the owner wants the key for a target.
func (c *claims[K]) set(at K, owner string, t Target) {
	has, taken := c.owner[at]
	switch {
	case !taken || has == owner:
		c.assign(at, owner, t)
	case owner < has:
		c.addRival(at, has, c.now[at])
		c.assign(at, owner, t)
	default:
		c.addRival(at, owner, t)
	}
}

func (c *claims[K]) addRival(at K, owner string, t Target) {
	if _, known := c.rivals[at][owner]; !known {
		c.version++
	}
	if c.rivals[at] == nil {
		c.rivals[at] = make(map[string]Target)
	}
	c.rivals[at][owner] = t
}

// drop notes that the owner no longer wants the key. The next owner by name gets it.
func (c *claims[K]) drop(at K, owner string) {
	rivals := c.rivals[at]
	if rivals != nil {
		c.version++
	}
	if c.owner[at] != owner {
		delete(rivals, owner)
	} else if len(rivals) == 0 {
		c.assign(at, owner, Target{})
	} else {
		next := slices.Min(slices.Collect(maps.Keys(rivals)))
		t := rivals[next]
		delete(rivals, next)
		c.assign(at, next, t)
	}
	if len(rivals) == 0 {
		delete(c.rivals, at)
	}
}

func (c *claims[K]) assign(at K, owner string, t Target) {
	old := c.now[at]
	if old != t {
		if _, noted := c.was[at]; c.recording && !noted {
			c.was[at] = old
		}
		c.count(t, c.ways.add)
		c.count(old, c.ways.drop)
	}
	if t == (Target{}) {
		delete(c.now, at)
		delete(c.owner, at)
		return
	}
	c.now[at], c.owner[at] = t, owner
}

func (c *claims[K]) count(t Target, fn func(Way)) {
	for _, l := range []Lead{t.Lead, t.Outside} {
		if l.HasBackends() {
			fn(l.Way)
		}
	}
}

func (c *claims[K]) conflicts() []string {
	var out []string
	for at, rivals := range c.rivals {
		for name := range rivals {
			out = append(out, conflictText(at, c.owner[at], name))
		}
	}
	return out
}

// counts are keys with their number of owners.
type counts[K comparable] struct {
	now       Counted[K]
	was       map[K]bool // whether a changed key existed when takeChanges was last called
	recording bool
	// spare bounds the keys that stay without an owner; idle is their number.
	spare, idle int
}

func newCounts[K comparable](now Counted[K], spare int) counts[K] {
	return counts[K]{now: now, was: make(map[K]bool), spare: spare}
}

func (c *counts[K]) add(k K) {
	c.note(k)
	if n, ok := c.now[k]; ok && n == 0 {
		c.idle--
	}
	c.now[k]++
}

// replace sets the keys to the list. It is for counts whose keys have one owner each.
func (c *counts[K]) replace(list []K) {
	wanted := make(map[K]bool, len(list))
	for _, k := range list {
		wanted[k] = true
		if _, is := c.now[k]; !is {
			c.add(k)
		}
	}
	for k := range maps.Clone(c.now) {
		if !wanted[k] {
			c.drop(k)
		}
	}
}

func (c *counts[K]) drop(k K) {
	c.note(k)
	if c.now[k]--; c.now[k] > 0 {
		return
	}
	if c.idle++; c.idle <= c.spare {
		c.now[k] = 0
		return
	}
	c.idle = 0
	for k, n := range c.now {
		if n <= 0 {
			c.note(k)
			delete(c.now, k)
		}
	}
}

// keepIdle adds a key that the kernel has and no owner wants, if fewer than spare are idle. It does not count as a change.
func (c *counts[K]) keepIdle(k K) {
	if _, ok := c.now[k]; !ok && c.idle < c.spare {
		c.now[k] = 0
		c.idle++
	}
}

func (c *counts[K]) note(k K) {
	if _, noted := c.was[k]; c.recording && !noted {
		_, c.was[k] = c.now[k]
	}
}

// takeChanges returns the keys that were added (true) and removed (false) since the last call.
func (c *counts[K]) takeChanges() map[K]bool {
	var out map[K]bool
	for k, was := range c.was {
		if _, is := c.now[k]; is != was {
			setIn(&out, k, is)
		}
	}
	clear(c.was)
	return out
}
