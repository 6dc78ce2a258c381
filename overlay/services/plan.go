package services

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// hostPorts owns the host ports of pods. Being the first of all owners, it wins over services.
const hostPorts = ""

// Plan keeps a Table up to date, one owner at a time, and remembers what changed until it is taken.
type Plan struct {
	table    *Table
	kept     map[string]*kept
	services claims[Address]
	ports    claims[NodePort]
	hairpin  counts[netip.Addr]
	members  counts[netip.Addr]
	ways     counts[Way]
	guards   counts[string]
	groups   map[GroupID]Group // as they were before changes not taken yet
	stale    []Stale
	noting   bool // something was taken: what changes is noted from then on
}

// A new way costs the kernel a walk through all the maps it uses, which is little at the beginning, but much later. So
// those of services with the usual numbers of backends are always there, and others stay a while after their last use.
const (
	usualBackends = 16
	spareWays     = 64
)

// kept says where to find an owner's share in the table.
type kept struct {
	services []Address
	ports    []NodePort
	groups   []GroupID
	guards   []string
	hairpin  []netip.Addr
}

// NewPlan returns the plan of an empty table.
func NewPlan() *Plan {
	t := NewTable()
	p := &Plan{table: t, kept: make(map[string]*kept), groups: make(map[GroupID]Group)}
	p.hairpin, p.members = newCounts(t.Hairpin, 0), newCounts(t.Members, 0)
	p.ways, p.guards = newCounts(t.Ways, spareWays), newCounts(make(Counted[string]), 0)
	for n := range uint32(usualBackends) {
		p.ways.add(Way{Where: AtAddress, Source: HideOutside, Backends: n + 1})
	}
	p.services, p.ports = newClaims(t.Services, &p.ways), newClaims(t.Ports, &p.ways)
	return p
}

// Table is all there should be. It is the plan's own: it changes with the plan, and must not be changed otherwise.
func (p *Plan) Table() *Table { return p.table }

// Owners are the names of the services that have a share.
func (p *Plan) Owners() []string {
	var names []string
	for name := range p.kept {
		if name != hostPorts {
			names = append(names, name)
		}
	}
	return names
}

// SetService replaces what the service of that name ("namespace/name") contributes; no ports: nothing.
func (p *Plan) SetService(name string, ports []Service) {
	var s share
	for i := range ports {
		s.addService(&ports[i])
	}
	p.set(name, &s)
}

// SetHostPorts replaces all host ports.
func (p *Plan) SetHostPorts(list []HostPort) {
	var s share
	for i := range list {
		s.addHostPort(&list[i])
	}
	p.set(hostPorts, &s)
}

// SetMembers replaces the nodes that may send to the tunnel's port.
func (p *Plan) SetMembers(list []netip.Addr) {
	for a := range maps.Clone(p.members.now) {
		if !slices.Contains(list, a) {
			p.members.drop(a)
		}
	}
	for _, a := range list {
		if _, is := p.members.now[a]; !is {
			p.members.add(a)
		}
	}
}

func (p *Plan) set(owner string, s *share) {
	old := p.kept[owner]
	if old == nil {
		old = &kept{}
	}
	now := s.keep()
	before := p.datagrams(old, now)
	for _, g := range s.groups {
		p.setGroup(g.id, g.Group)
	}
	for _, name := range now.guards {
		p.table.Guards[name] = s.guards[name]
		p.guards.add(name)
	}
	for _, a := range now.hairpin {
		p.hairpin.add(a)
	}
	for _, t := range s.services {
		p.services.set(t.at, owner, t.Target)
	}
	for _, t := range s.ports {
		p.ports.set(t.at, owner, t.Target)
	}
	p.drop(owner, old, now)
	if len(now.services)+len(now.ports)+len(now.groups) == 0 {
		delete(p.kept, owner)
	} else {
		p.kept[owner] = now
	}
	p.stale = append(p.stale, staleFlows(before, p.datagrams(old, now))...)
}

// drop takes away what an owner had and has no more.
func (p *Plan) drop(owner string, old, now *kept) {
	for _, at := range without(old.services, now.services) {
		p.services.drop(at, owner)
	}
	for _, at := range without(old.ports, now.ports) {
		p.ports.drop(at, owner)
	}
	for _, id := range without(old.groups, now.groups) {
		p.setGroup(id, Group{})
	}
	for _, name := range old.guards {
		if p.guards.drop(name); p.guards.now[name] == 0 {
			delete(p.table.Guards, name)
		}
	}
	for _, a := range old.hairpin {
		p.hairpin.drop(a)
	}
}

// keep lists where the share is.
func (s *share) keep() *kept {
	k := &kept{hairpin: s.hairpin, services: grown[Address](len(s.services)), ports: grown[NodePort](len(s.ports)), groups: grown[GroupID](len(s.groups))}
	if len(s.guards) > 0 {
		k.guards = slices.Sorted(maps.Keys(s.guards))
	}
	for _, t := range s.services {
		k.services = append(k.services, t.at)
	}
	for _, t := range s.ports {
		k.ports = append(k.ports, t.at)
	}
	for _, g := range s.groups {
		k.groups = append(k.groups, g.id)
	}
	return k
}

func grown[T any](n int) []T {
	if n == 0 {
		return nil
	}
	return make([]T, 0, n)
}

// setGroup replaces a group, leaving backends their numbers where that is possible.
func (p *Plan) setGroup(id GroupID, g Group) {
	old := p.table.Groups[id]
	g.Backends = settle(old.Backends, g.Backends)
	if old.Sticky == g.Sticky && slices.Equal(old.Backends, g.Backends) {
		return
	}
	if _, noted := p.groups[id]; p.noting && !noted {
		p.groups[id] = old
	}
	if g.exists() {
		p.table.Groups[id] = g
	} else {
		delete(p.table.Groups, id)
	}
}

// settle orders the backends wanted, which are sorted, so that those that were there before keep their place unless it is
// past the end.
func settle(old, want []netip.AddrPort) []netip.AddrPort {
	if len(old) == 0 || len(want) == 0 || slices.Equal(old, want) {
		return want
	}
	out := make([]netip.AddrPort, len(want))
	placed := make([]bool, len(want))
	for i, b := range old[:min(len(old), len(want))] {
		if at, ok := slices.BinarySearchFunc(want, b, netip.AddrPort.Compare); ok && !placed[at] {
			out[i], placed[at] = b, true
		}
	}
	next := 0
	for i := range out {
		if out[i].IsValid() {
			continue
		}
		for placed[next] {
			next++
		}
		out[i], placed[next] = want[next], true
	}
	return out
}

// Adopt gives backends the numbers they have in another table, which is what the kernel holds, and keeps its ways.
func (p *Plan) Adopt(have *Table) {
	for w := range have.Ways {
		p.ways.keep(w)
	}
	for id, g := range p.table.Groups {
		if other, ok := have.Groups[id]; ok && !slices.Equal(other.Backends, g.Backends) {
			g.Backends = settle(other.Backends, slices.SortedFunc(slices.Values(g.Backends), netip.AddrPort.Compare))
			p.table.Groups[id] = g
		}
	}
}

// Rivalry is another number each time Rivals may say something else.
func (p *Plan) Rivalry() int { return p.services.turns + p.ports.turns }

// Rivals says who wants what somebody else has, for people.
func (p *Plan) Rivals() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for _, list := range [][]string{p.services.disputes(), p.ports.disputes()} {
			for _, text := range list {
				if !yield(text) {
					return
				}
			}
		}
	})
}

func dispute(at fmt.Stringer, owner, rival string) string {
	if owner == hostPorts {
		owner = "a pod's host port"
	} else {
		owner = "service " + owner
	}
	return fmt.Sprintf("%s belongs to %s: service %s does not get it", at, owner, rival)
}
