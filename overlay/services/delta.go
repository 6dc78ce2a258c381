package services

import (
	"maps"
	"net/netip"
	"slices"
)

// Change is an old and a new value; the zero value stands for none.
type Change[V any] struct{ Old, New V }

// Delta is the difference between two tables.
type Delta struct {
	Services map[Address]Change[Target]
	Ports    map[NodePort]Change[Target]
	Groups   map[GroupID]Change[Group]
	// Ways, Guards, Hairpin, Members and Sources have true for keys that come and false for keys that go.
	Ways    map[Way]bool
	Guards  map[string]bool
	Hairpin map[netip.Addr]bool
	Members map[netip.Addr]bool
	Sources map[TunnelSource]bool
	// Stale are the flows to delete once the change is made.
	Stale []Stale
}

// Empty reports whether the tables are equal.
func (d *Delta) Empty() bool {
	return len(d.Services)+len(d.Ports)+len(d.Groups)+len(d.Ways)+len(d.Guards)+len(d.Hairpin)+len(d.Members)+len(d.Sources) == 0
}

// TakeDelta returns the changes since the last call of TakeDelta or TakeStale.
func (p *Plan) TakeDelta() *Delta {
	if !p.recording {
		d := Diff(NewTable(), p.table)
		d.Stale = p.TakeStale()
		return d
	}
	d := &Delta{
		Services: changed(p.services.was, p.table.Services), Ports: changed(p.ports.was, p.table.Ports),
		Ways: p.ways.takeChanges(), Guards: p.guards.takeChanges(), Hairpin: p.hairpin.takeChanges(), Members: p.members.takeChanges(), Sources: p.sources.takeChanges(), Stale: p.stale,
	}
	for id, old := range p.groups {
		if now := p.table.Groups[id]; !sameGroup(old, now) {
			setIn(&d.Groups, id, Change[Group]{old, now})
		}
	}
	clear(p.groups)
	p.stale = nil
	return d
}

// TakeStale is TakeDelta for a caller that compares the whole table with another: it returns only the flows to delete.
// Changes are recorded only after the first call of either, so the first plan of many Services costs little.
func (p *Plan) TakeStale() []Stale {
	stale := p.stale
	p.stale, p.recording = nil, true
	clear(p.groups)
	p.services.startRecording()
	p.ports.startRecording()
	p.ways.startRecording()
	p.guards.startRecording()
	p.hairpin.startRecording()
	p.members.startRecording()
	p.sources.startRecording()
	return stale
}

func (c *claims[K]) startRecording() {
	c.recording = true
	clear(c.was)
}

func (c *counts[K]) startRecording() {
	c.recording = true
	clear(c.was)
}

func changed[K comparable](was, now map[K]Target) map[K]Change[Target] {
	var out map[K]Change[Target]
	for k, old := range was {
		if t := now[k]; t != old {
			setIn(&out, k, Change[Target]{old, t})
		}
	}
	clear(was)
	return out
}

func setIn[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[k] = v
}

func sameGroup(a, b Group) bool { return a.Sticky == b.Sticky && slices.Equal(a.Backends, b.Backends) }

// Diff compares two complete tables.
func Diff(have, want *Table) *Delta {
	d := &Delta{
		Services: differ(have.Services, want.Services), Ports: differ(have.Ports, want.Ports),
		Ways: keys(have.Ways, want.Ways), Guards: keys(have.Guards, want.Guards), Hairpin: keys(have.Hairpin, want.Hairpin),
		Members: keys(have.Members, want.Members), Sources: keys(have.Sources, want.Sources),
	}
	for id, old := range have.Groups {
		if now := want.Groups[id]; !sameGroup(old, now) {
			setIn(&d.Groups, id, Change[Group]{old, now})
		}
	}
	if len(have.Groups) == 0 {
		d.Groups = make(map[GroupID]Change[Group], len(want.Groups))
	}
	for id, now := range want.Groups {
		if _, ok := have.Groups[id]; !ok {
			setIn(&d.Groups, id, Change[Group]{New: now})
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
			setIn(&out, k, Change[Target]{old, now})
		}
	}
	for k, now := range want {
		if _, ok := have[k]; !ok {
			setIn(&out, k, Change[Target]{New: now})
		}
	}
	return out
}

func keys[K comparable, V any](have, want map[K]V) map[K]bool {
	var out map[K]bool
	for k := range have {
		if _, ok := want[k]; !ok {
			setIn(&out, k, false)
		}
	}
	for k := range maps.Keys(want) {
		if _, ok := have[k]; !ok {
			setIn(&out, k, true)
		}
	}
	return out
}
