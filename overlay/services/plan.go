package services

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// hostPorts is the owner of the host ports of pods. It sorts before all other owners, so host ports win over Services.
const hostPorts = ""

// Plan keeps a Table up to date, one owner at a time, and records the changes for TakeDelta.
type Plan struct {
	table     *Table
	holdings  map[string]*holding
	services  claims[Address]
	ports     claims[NodePort]
	hairpin   counts[netip.Addr]
	members   counts[netip.Addr]
	sources   counts[TunnelSource]
	ways      counts[Way]
	guards    counts[string]
	groups    map[GroupID]Group // the groups before the changes that TakeDelta has not returned yet
	stale     []Stale
	recording bool // TakeDelta or TakeStale was called: changes are recorded from then on
}

// When a way is added, the kernel walks through all maps that use it, which is cheap only while the maps are small. So the
// ways for up to usualBackends backends always exist, and spareWays others stay after their last use.
const (
	usualBackends = 16
	spareWays     = 64
)

// holding is the set of keys that an owner has in the table.
type holding struct {
	services []Address
	ports    []NodePort
	groups   []GroupID
	guards   []string
	hairpin  []netip.Addr
}

// NewPlan returns the plan of an empty table.
func NewPlan() *Plan {
	t := NewTable()
	p := &Plan{table: t, holdings: make(map[string]*holding), groups: make(map[GroupID]Group)}
	p.hairpin, p.members = newCounts(t.Hairpin, 0), newCounts(t.Members, 0)
	p.sources = newCounts(t.Sources, 0)
	p.ways, p.guards = newCounts(t.Ways, spareWays), newCounts(make(Counted[string]), 0)
	for n := range uint32(usualBackends) {
		p.ways.add(Way{Where: AtAddress, Source: HideOutside, Backends: n + 1})
	}
	p.services, p.ports = newClaims(t.Services, &p.ways), newClaims(t.Ports, &p.ways)
	return p
}

// Table returns everything that the kernel should hold. It changes with the plan; the caller must not change it.
func (p *Plan) Table() *Table { return p.table }

// Owners returns the names of the Services that have keys in the table.
func (p *Plan) Owners() []string {
	var names []string
	for name := range p.holdings {
		if name != hostPorts {
			names = append(names, name)
		}
	}
	return names
}

// SetService replaces the ports of the Service "namespace/name"; an empty list removes it.
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

// SetMembers replaces the nodes that may send to the tunnel's port, and the source networks that each may use.
func (p *Plan) SetMembers(list []netip.Addr, sources []TunnelSource) {
	p.members.replace(list)
	p.sources.replace(sources)
}

func (p *Plan) set(owner string, s *share) {
	old := p.holdings[owner]
	if old == nil {
		old = &holding{}
	}
	now := s.holding()
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
	p.removeOld(owner, old, now)
	if len(now.services)+len(now.ports)+len(now.groups) == 0 {
		delete(p.holdings, owner)
	} else {
		p.holdings[owner] = now
	}
	p.stale = append(p.stale, staleFlows(before, p.datagrams(old, now))...)
}

// removeOld removes the keys of old that are not in now.
func (p *Plan) removeOld(owner string, old, now *holding) {
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

// holding returns the keys of the share.
func (s *share) holding() *holding {
	k := &holding{hairpin: s.hairpin, services: withCapacity[Address](len(s.services)), ports: withCapacity[NodePort](len(s.ports)), groups: withCapacity[GroupID](len(s.groups))}
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

func withCapacity[T any](n int) []T {
	if n == 0 {
		return nil
	}
	return make([]T, 0, n)
}

// setGroup replaces a group. Backends keep their numbers where that is possible.
func (p *Plan) setGroup(id GroupID, g Group) {
	old := p.table.Groups[id]
	g.Backends = keepNumbers(old.Backends, g.Backends)
	if old.Sticky == g.Sticky && slices.Equal(old.Backends, g.Backends) {
		return
	}
	if _, noted := p.groups[id]; p.recording && !noted {
		p.groups[id] = old
	}
	if g.exists() {
		p.table.Groups[id] = g
	} else {
		delete(p.table.Groups, id)
	}
}

// keepNumbers orders the sorted list want so that backends of old keep their index, unless it is past the end.
func keepNumbers(old, want []netip.AddrPort) []netip.AddrPort {
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

// AdoptNumbers takes over the numbers of backends from the kernel's table, and keeps the ways that the kernel has.
func (p *Plan) AdoptNumbers(have *Table) {
	for w := range have.Ways {
		p.ways.keepIdle(w)
	}
	for id, g := range p.table.Groups {
		if other, ok := have.Groups[id]; ok && !slices.Equal(other.Backends, g.Backends) {
			g.Backends = keepNumbers(other.Backends, slices.SortedFunc(slices.Values(g.Backends), netip.AddrPort.Compare))
			p.table.Groups[id] = g
		}
	}
}

// ConflictVersion returns a number that changes when Conflicts may have changed.
func (p *Plan) ConflictVersion() int { return p.services.version + p.ports.version }

// Conflicts describes the addresses and ports that a Service wants and another owner has, one line each.
func (p *Plan) Conflicts() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for _, list := range [][]string{p.services.conflicts(), p.ports.conflicts()} {
			for _, text := range list {
				if !yield(text) {
					return
				}
			}
		}
	})
}

func conflictText(at fmt.Stringer, owner, rival string) string {
	if owner == hostPorts {
		owner = "a pod's host port"
	} else {
		owner = "service " + owner
	}
	return fmt.Sprintf("%s belongs to %s: service %s does not get it", at, owner, rival)
}
