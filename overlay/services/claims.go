package services

import (
	"fmt"
	"maps"
	"slices"
)

// claims are the targets of one kind, with who has each. Of several owners that want one, the first by name has it,
// whatever order they came in.
type claims[K interface {
	comparable
	fmt.Stringer
}] struct {
	now    map[K]Target
	owner  map[K]string
	rivals map[K]map[string]Target
	was    map[K]Target // before changes not taken yet
	noting bool
	ways   *counts[Way]
	turns  int // how often rivals came or went
}

func newClaims[K interface {
	comparable
	fmt.Stringer
}](now map[K]Target, ways *counts[Way]) claims[K] {
	return claims[K]{now: now, owner: make(map[K]string), rivals: make(map[K]map[string]Target), was: make(map[K]Target), ways: ways}
}

// set has the owner want the key for a target.
func (c *claims[K]) set(at K, owner string, t Target) {
	has, taken := c.owner[at]
	switch {
	case !taken || has == owner:
		c.put(at, owner, t)
	case owner < has:
		c.outdo(at, has, c.now[at])
		c.put(at, owner, t)
	default:
		c.outdo(at, owner, t)
	}
}

func (c *claims[K]) outdo(at K, owner string, t Target) {
	if _, known := c.rivals[at][owner]; !known {
		c.turns++
	}
	if c.rivals[at] == nil {
		c.rivals[at] = make(map[string]Target)
	}
	c.rivals[at][owner] = t
}

// drop has the owner want the key no more.
func (c *claims[K]) drop(at K, owner string) {
	rivals := c.rivals[at]
	if rivals != nil {
		c.turns++
	}
	if c.owner[at] != owner {
		delete(rivals, owner)
	} else if len(rivals) == 0 {
		c.put(at, owner, Target{})
	} else {
		next := slices.Min(slices.Collect(maps.Keys(rivals)))
		t := rivals[next]
		delete(rivals, next)
		c.put(at, next, t)
	}
	if len(rivals) == 0 {
		delete(c.rivals, at)
	}
}

func (c *claims[K]) put(at K, owner string, t Target) {
	old := c.now[at]
	if old != t {
		if _, noted := c.was[at]; c.noting && !noted {
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
		if l.Somewhere() {
			fn(l.Way)
		}
	}
}

func (c *claims[K]) disputes() []string {
	var out []string
	for at, rivals := range c.rivals {
		for name := range rivals {
			out = append(out, dispute(at, c.owner[at], name))
		}
	}
	return out
}

// counts are keys that several may want.
type counts[K comparable] struct {
	now    Counted[K]
	was    map[K]bool // whether it was there before changes not taken yet
	noting bool
	// spare is how many keys may stay that nobody wants any more, and idle how many do.
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

// keep adds a key that is there already though nobody wants it yet, if there is room: it does not come, so take does not
// tell of it.
func (c *counts[K]) keep(k K) {
	if _, ok := c.now[k]; !ok && c.idle < c.spare {
		c.now[k] = 0
		c.idle++
	}
}

func (c *counts[K]) note(k K) {
	if _, noted := c.was[k]; c.noting && !noted {
		_, c.was[k] = c.now[k]
	}
}

// take returns what came (true) and went (false).
func (c *counts[K]) take() map[K]bool {
	var out map[K]bool
	for k, was := range c.was {
		if _, is := c.now[k]; is != was {
			put(&out, k, is)
		}
	}
	clear(c.was)
	return out
}
