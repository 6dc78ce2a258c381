package connlimit

import (
	"testing"

	"pgregory.net/rapid"
)

type conn struct {
	name  string
	group string
	state State
}

func (c *conn) State() State { return c.state }

func idle(group, name string, last int64) *conn { return &conn{name, group, State{Last: last}} }

func busy(group, name string, last int64) *conn { return &conn{name, group, State{true, last}} }

func TestPlace(t *testing.T) {
	for _, c := range []struct {
		name        string
		there       []*conn
		of          string
		each, total int
		victim      string
		ok          bool
	}{
		{"room", []*conn{idle("a", "a1", 1)}, "a", 2, 2, "", true},
		{"a full group makes room itself", []*conn{idle("a", "a1", 2), idle("a", "a2", 1), idle("b", "b1", 0)}, "a", 2, 9, "a2", true},
		{"what is in use stays", []*conn{busy("a", "a1", 1), idle("a", "a2", 2)}, "a", 2, 9, "a2", true},
		{"a full group in use gets no more", []*conn{busy("a", "a1", 1), busy("a", "a2", 2), idle("b", "b1", 0)}, "a", 2, 9, "", false},
		{"a full crowd: the largest group makes room", []*conn{idle("a", "a1", 2), idle("a", "a2", 1), idle("b", "b1", 0)}, "c", 9, 3, "a2", true},
		{"of equal groups the one with the idlest", []*conn{idle("a", "a1", 2), idle("b", "b1", 1), idle("c", "c1", 3)}, "d", 9, 3, "b1", true},
		{"the largest group makes room itself", []*conn{idle("a", "a1", 1), idle("a", "a2", 2), idle("b", "b1", 0)}, "a", 9, 3, "a1", true},
		{"the newest in use of a group that is far ahead", []*conn{busy("a", "a1", 1), busy("a", "a2", 2), busy("b", "b1", 0)}, "c", 9, 3, "a2", true},
		{"nothing in use of a group that is one ahead", []*conn{busy("a", "a1", 1), busy("b", "b1", 2)}, "c", 9, 2, "", false},
		{"then the own idlest", []*conn{busy("a", "a1", 1), busy("a", "a2", 2), idle("b", "b1", 0)}, "b", 9, 3, "b1", true},
	} {
		var crowd Crowd[string, *conn]
		for _, m := range c.there {
			crowd.Add(m.group, m)
		}
		victim, found, ok := crowd.Place(c.of, c.each, c.total)
		name := ""
		if found {
			name = victim.name
		}
		if name != c.victim || ok != c.ok {
			t.Errorf("%s: %q gives way, %v", c.name, name, ok)
		}
	}
}

// TestNoGroupKeepsAnotherOut: whatever came before, a group below its share gets a place as long as others have idle members
// or more than it; bounds hold; and the sizes that are kept are those that are.
func TestNoGroupKeepsAnotherOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		each, total := rapid.IntRange(1, 6).Draw(t, "each"), rapid.IntRange(1, 12).Draw(t, "total")
		var crowd Crowd[int, *conn]
		var there []*conn
		groups := map[*conn]int{}
		clock := int64(0)
		remove := func(m *conn) {
			crowd.Remove(groups[m], m)
			for i := range there {
				if there[i] == m {
					there = append(there[:i], there[i+1:]...)
					break
				}
			}
		}
		count := map[int]int{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			clock++
			if len(there) > 0 {
				m := rapid.SampledFrom(there).Draw(t, "which")
				switch rapid.IntRange(0, 3).Draw(t, "what") {
				case 0:
					remove(m)
				case 1:
					m.state = State{rapid.Bool().Draw(t, "busy"), clock}
				}
			}
			clear(count)
			most := 0
			for _, m := range there {
				count[groups[m]]++
				most = max(most, count[groups[m]])
			}
			key := rapid.IntRange(0, 3).Draw(t, "group")
			victim, found, ok := crowd.Place(key, each, total)
			if !ok && count[key] < each && most > count[key]+1 {
				t.Fatalf("group %d with %d is refused, another has %d", key, count[key], most)
			}
			if !ok {
				continue
			}
			if found {
				if g := groups[victim]; g != key && count[g] <= count[key] {
					t.Fatalf("group %d of %d gave way to group %d of %d", g, count[g], key, count[key])
				}
				remove(victim)
			}
			m := &conn{state: State{Last: clock}}
			groups[m] = key
			crowd.Add(key, m)
			there = append(there, m)
			if crowd.Len() != len(there) || len(there) > total || crowd.Of(key) > each || len(crowd.All()) != len(there) {
				t.Fatalf("%d members, %d counted, of at most %d; %d of the group, of at most %d", len(there), crowd.Len(), total, crowd.Of(key), each)
			}
		}
		for len(there) > 0 {
			remove(there[0])
		}
		if crowd.Len() != 0 || crowd.Groups() != 0 || crowd.most != 0 || len(crowd.sizes) != 0 {
			t.Fatalf("left over: %+v", crowd)
		}
	})
}
