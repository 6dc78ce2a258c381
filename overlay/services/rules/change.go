package rules

import (
	"net/netip"
	"slices"

	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/services"
)

// change returns the steps that apply a delta: first new objects, then references to them, then removals. So the table is
// consistent after each step, and a large change may be split.
func (l *layout) change(want *services.Table, d *services.Delta) *nft.Change {
	c := &changer{Change: &nft.Change{}, layout: l}
	c.addTo(want, d)
	return c.Change
}

// rebuild returns the steps that replace the whole table.
func (l *layout) rebuild(want *services.Table, d *services.Delta) *nft.Change {
	c := &changer{Change: &nft.Change{}, layout: l}
	c.ReplaceTable(l.table)
	c.addTo(want, d)
	return c.Change
}

// changer adds steps to a change.
type changer struct {
	*nft.Change
	*layout
}

func (c *changer) addTo(want *services.Table, d *services.Delta) {
	c.addWays(d.Ways)
	c.addGuards(d.Guards, want.Guards)
	groups := elementsOfGroups(d.Groups)
	c.elements(backendsMap, groups.backends)
	c.elements(stayMap, nft.Elements{Add: groups.stay.Add})
	c.elements(idsMap, groups.ids)
	c.changeTargets(d)
	c.elements(idsMap, groups.idsGone)
	c.elements(stayMap, nft.Elements{Delete: groups.stay.Delete})
	c.elements(backendsMap, groups.gone)
	c.elements(hairpinSet, elementsOfKeys(d.Hairpin, hairpinKey))
	c.elements(membersSet, elementsOfKeys(d.Members, appendAddr))
	c.changeSources(d.Sources)
	c.removeChains(d)
}

func (c *changer) elements(set string, e nft.Elements) { c.SetElements(c.table, set, e) }

func (c *changer) changeSources(sources map[services.TunnelSource]bool) {
	change := map[string]*nft.Elements{sources4Set: {}, sources6Set: {}}
	for s, comes := range sources {
		set := change[sources4Set]
		if s.Network.Addr().Is6() {
			set = change[sources6Set]
		}
		if comes {
			set.Add = append(set.Add, sourceElement(s))
		} else {
			set.Delete = append(set.Delete, sourceElement(s))
		}
	}
	for name, e := range change {
		c.elements(name, *e)
	}
}

// wayElement maps a way to its chain.
func wayElement(w services.Way) nft.Element {
	return nft.Element{Key: wayKey(nil, w), Chain: wayChain(w), Verdict: nft.GotoVerdict}
}

func (c *changer) addWays(ways map[services.Way]bool) {
	for way, comes := range ways {
		if comes {
			c.AddChain(c.table, nft.Chain{Name: wayChain(way), Rules: c.way(way)})
			c.elements(waysOf(way.Where), nft.Elements{Add: []nft.Element{wayElement(way)}})
		}
	}
}

func (c *changer) addGuards(names map[string]bool, guards map[string][]netip.Prefix) {
	for name, comes := range names {
		if comes {
			c.AddChain(c.table, nft.Chain{Name: name, Rules: c.guard(guards[name])})
		}
	}
}

func (c *changer) removeChains(d *services.Delta) {
	var names []string
	for way, comes := range d.Ways {
		if !comes {
			names = append(names, wayChain(way))
			c.elements(waysOf(way.Where), nft.Elements{Delete: []nft.Element{wayElement(way)}})
		}
	}
	for name, comes := range d.Guards {
		if !comes {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	c.DeleteChains(c.table, names)
}

// changeTargets changes the maps of destinations.
func (c *changer) changeTargets(d *services.Delta) {
	at := elementsOfTargets(d.Services, addressKey)
	c.changeLeads(outsideMap, at.outside)
	c.elements(guardsMap, at.guard)
	c.changeLeads(servicesMap, at.lead)
	c.elements(refusedSet, at.refused)
	c.elements(droppedSet, at.dropped)
	at = elementsOfTargets(d.Ports, portKey)
	c.changeLeads(outsidePortsMap, at.outside)
	c.changeLeads(portsMap, at.lead)
	c.elements(refusedPortsSet, at.refused)
	c.elements(droppedPortsSet, at.dropped)
}

// changeLeads changes two maps such that no destination has a way without a group in between.
func (c *changer) changeLeads(name string, e leadElements) {
	c.elements(name+groupsOf, e.group)
	c.elements(name, e.way)
	c.elements(name+groupsOf, e.gone)
}

// leadElements are elements of a map of ways and of its map of groups: added or changed ones in way and group, removed ones
// in gone.
type leadElements struct{ way, group, gone nft.Elements }

func (l *leadElements) change(mem *nft.Arena, key []byte, old, now services.Lead) {
	if old == now {
		return
	}
	var way, group [2][]byte
	for i, side := range []services.Lead{old, now} {
		if side.HasBackends() {
			way[i], group[i] = wayKey(unused(mem.Room(12)), side.Way), groupKey(unused(mem.Room(12)), side.Group)
		}
	}
	l.way.Value(key, way[0], way[1])
	staged(&l.group, &l.gone, key, group[0], group[1])
}

// targetElements are the elements of all maps and sets of destinations.
type targetElements struct {
	lead, outside           leadElements
	guard, refused, dropped nft.Elements
}

func elementsOfTargets[K comparable](targets map[K]services.Change[services.Target], key func([]byte, K) []byte) (out targetElements) {
	var mem nft.Arena
	out.lead.expect(len(targets))
	for at, c := range targets {
		k := key(mem.Room(longestAddress+8), at)
		out.lead.change(&mem, k, c.Old.Lead, c.New.Lead)
		out.outside.change(&mem, k, c.Old.Outside, c.New.Outside)
		out.guard.Jump(k, c.Old.Guard, c.New.Guard)
		out.refused.Member(k, c.Old.Refusal == services.Reject, c.New.Refusal == services.Reject)
		out.dropped.Member(k, c.Old.Refusal == services.Drop, c.New.Refusal == services.Drop)
	}
	return out
}

// expect allocates room for n added leads.
func (l *leadElements) expect(n int) {
	l.way.Add, l.group.Add = make([]nft.Element, 0, n), make([]nft.Element, 0, n)
}

// longestAddress is how many bytes an address has at most.
const longestAddress = 16

// groupElements are elements of the maps of backends and of their ids (added or changed, and removed), and of stayMap.
type groupElements struct{ backends, gone, ids, idsGone, stay nft.Elements }

func elementsOfGroups(groups map[services.GroupID]services.Change[services.Group]) (out groupElements) {
	var mem nft.Arena
	most := 0
	for _, c := range groups {
		most += len(c.New.Backends)
	}
	out.backends.Add = make([]nft.Element, 0, most)
	for id, c := range groups {
		old, now := c.Old.Backends, c.New.Backends
		sticky := c.Old.Sticky || c.New.Sticky
		for i := range max(len(old), len(now)) {
			was, is := at(old, i), at(now, i)
			if was == is && !sticky {
				continue
			}
			key := numberedKey(mem.Room(12), id, i)
			staged(&out.backends, &out.gone, key, valueOf(&mem, was, backendValue), valueOf(&mem, is, backendValue))
			if sticky {
				staged(&out.ids, &out.idsGone, key, valueOf(&mem, only(was, c.Old.Sticky), backendID), valueOf(&mem, only(is, c.New.Sticky), backendID))
			}
		}
		if sticky {
			out.addStay(id, c)
		}
	}
	return out
}

// at returns the backend of that number; the invalid one if there is none.
func at(list []netip.AddrPort, i int) (b netip.AddrPort) {
	if i < len(list) {
		b = list[i]
	}
	return b
}

// only returns the backend if yes is set, else the invalid backend.
func only(b netip.AddrPort, yes bool) netip.AddrPort {
	if !yes {
		return netip.AddrPort{}
	}
	return b
}

// valueOf returns a value made of a backend; nil for the invalid one.
func valueOf(mem *nft.Arena, b netip.AddrPort, of func([]byte, netip.AddrPort) []byte) []byte {
	if !b.IsValid() {
		return nil
	}
	return of(mem.Room(longestAddress+4), b)
}

// staged adds an added or changed value to change, and a removed one to gone.
func staged(change, gone *nft.Elements, key, old, now []byte) {
	if now == nil {
		change = gone
	}
	change.Value(key, old, now)
}

func (out *groupElements) addStay(id services.GroupID, c services.Change[services.Group]) {
	before, after := distinct(c.Old), distinct(c.New)
	for b := range before {
		if _, ok := after[b]; !ok {
			out.stay.Delete = append(out.stay.Delete, nft.Element{Key: stayKey(nil, id, b)})
		}
	}
	for b := range after {
		if _, ok := before[b]; !ok {
			out.stay.Add = append(out.stay.Add, nft.Element{Key: stayKey(nil, id, b), Value: backendValue(nil, b)})
		}
	}
}

// distinct returns the distinct backends of a sticky group.
func distinct(g services.Group) map[netip.AddrPort]struct{} {
	out := make(map[netip.AddrPort]struct{})
	for _, b := range g.Backends {
		if g.Sticky && b.IsValid() {
			out[b] = struct{}{}
		}
	}
	return out
}

// elementsOfKeys returns the elements of a set for keys that are added (true) or removed (false).
func elementsOfKeys[K comparable](keys map[K]bool, key func([]byte, K) []byte) (e nft.Elements) {
	for k, comes := range keys {
		e.Member(key(nil, k), !comes, comes)
	}
	return e
}
