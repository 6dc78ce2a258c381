package services

import (
	"maps"
	"net/netip"
	"slices"
)

// Change is what something was and what it is now; the zero value is not to be there.
type Change[V any] struct{ Old, New V }

// Delta is the difference between two tables.
type Delta struct {
	Services map[Address]Change[Target]
	Ports    map[NodePort]Change[Target]
	Groups   map[GroupID]Change[Group]
	// Ways, Guards, Hairpin and Members have true for what comes and false for what goes.
	Ways    map[Way]bool
	Guards  map[string]bool
	Hairpin map[netip.Addr]bool
	Members map[netip.Addr]bool
	// Stale are the flows to forget once the change is made.
	Stale []Stale
}

// Empty tells whether the tables were alike.
func (d *Delta) Empty() bool {
	return len(d.Services)+len(d.Ports)+len(d.Groups)+len(d.Ways)+len(d.Guards)+len(d.Hairpin)+len(d.Members) == 0
}

// Take returns what changed since it was called last, or Pass was.
func (p *Plan) Take() *Delta {
	if !p.noting {
		d := Diff(NewTable(), p.table)
		d.Stale = p.Pass()
		return d
	}
	d := &Delta{
		Services: changed(p.services.was, p.table.Services), Ports: changed(p.ports.was, p.table.Ports),
		Ways: p.ways.take(), Guards: p.guards.take(), Hairpin: p.hairpin.take(), Members: p.members.take(), Stale: p.stale,
	}
	for id, old := range p.groups {
		if now := p.table.Groups[id]; !sameGroup(old, now) {
			put(&d.Groups, id, Change[Group]{old, now})
		}
	}
	clear(p.groups)
	p.stale = nil
	return d
}

// Pass is Take for who compares the table with another as a whole: it returns only the flows to forget. As long as neither was
// called nothing is noted, so the first plan of many services costs little.
func (p *Plan) Pass() []Stale {
	stale := p.stale
	p.stale, p.noting = nil, true
	clear(p.groups)
	p.services.follow()
	p.ports.follow()
	p.ways.follow()
	p.guards.follow()
	p.hairpin.follow()
	p.members.follow()
	return stale
}

func (c *claims[K]) follow() {
	c.noting = true
	clear(c.was)
}

func (c *counts[K]) follow() {
	c.noting = true
	clear(c.was)
}

func changed[K comparable](was, now map[K]Target) map[K]Change[Target] {
	var out map[K]Change[Target]
	for k, old := range was {
		if t := now[k]; t != old {
			put(&out, k, Change[Target]{old, t})
		}
	}
	clear(was)
	return out
}

func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[k] = v
}

func sameGroup(a, b Group) bool { return a.Sticky == b.Sticky && slices.Equal(a.Backends, b.Backends) }

// Diff compares two tables whole.
func Diff(have, want *Table) *Delta {
	d := &Delta{
		Services: differ(have.Services, want.Services), Ports: differ(have.Ports, want.Ports),
		Ways: keys(have.Ways, want.Ways), Guards: keys(have.Guards, want.Guards), Hairpin: keys(have.Hairpin, want.Hairpin),
		Members: keys(have.Members, want.Members),
	}
	for id, old := range have.Groups {
		if now := want.Groups[id]; !sameGroup(old, now) {
			put(&d.Groups, id, Change[Group]{old, now})
		}
	}
	if len(have.Groups) == 0 {
		d.Groups = make(map[GroupID]Change[Group], len(want.Groups))
	}
	for id, now := range want.Groups {
		if _, ok := have.Groups[id]; !ok {
			put(&d.Groups, id, Change[Group]{New: now})
		}
	}
	d.Stale = staleFlows(have.datagrams(), want.datagrams())
	return d
}

func differ[K comparable](have, want map[K]Target) map[K]Change[Target] {
	var out map[K]Change[Target]
	if len(have) == 0 {
		out = make(map[K]Change[Target], len(want))
	}
	for k, old := range have {
		if now := want[k]; now != old {
			put(&out, k, Change[Target]{old, now})
		}
	}
	for k, now := range want {
		if _, ok := have[k]; !ok {
			put(&out, k, Change[Target]{New: now})
		}
	}
	return out
}

func keys[K comparable, V any](have, want map[K]V) map[K]bool {
	var out map[K]bool
	for k := range have {
		if _, ok := want[k]; !ok {
			put(&out, k, false)
		}
	}
	for k := range maps.Keys(want) {
		if _, ok := have[k]; !ok {
			put(&out, k, true)
		}
	}
	return out
}
