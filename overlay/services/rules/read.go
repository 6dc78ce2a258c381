package rules

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/services"
)

// tooMany is a number of backends that no group has. An element with a greater number was made by another program.
const tooMany = 1 << 16

// read returns what the kernel holds; nil when there is no table, or one that was not made from this configuration, or one
// whose rules are not as they should be. Rules of guards are known by name only; those in want are compared. A listing that
// stays contradictory is nil too, so that the table is made anew.
func (t *Table) read(want *services.Table) (have *services.Table, err error) {
	err = nft.RetryRead(func() error {
		have, err = t.readOnce(want)
		return err
	})
	if errors.Is(err, nft.ErrUnstable) || errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return have, err
}

func (t *Table) readOnce(want *services.Table) (*services.Table, error) {
	found, err := t.conn.ReadTable(t.layout.table)
	if err != nil || found == nil || !found.Holds(t.layout.table) {
		return nil, err
	}
	have, err := t.readElements(want)
	if err != nil || !t.chainsAreRight(found, have, want) {
		return nil, err
	}
	return have, nil
}

// chainsAreRight compares the chains of ways and guards, and notes the chains of other programs.
func (t *Table) chainsAreRight(found *nft.Contents, have, want *services.Table) bool {
	names := found.Chains()
	for _, c := range t.layout.table.Chains {
		delete(names, c.Name)
	}
	for w := range have.Ways {
		delete(names, wayChain(w))
		if !found.HoldsChain(&nft.Chain{Name: wayChain(w), Rules: t.layout.way(w)}) {
			return false
		}
	}
	t.others = nil
	for name := range names {
		switch {
		case strings.HasPrefix(name, "from-"):
			have.Guards[name] = want.Guards[name]
			if networks, ok := want.Guards[name]; ok && !found.HoldsChain(&nft.Chain{Name: name, Rules: t.layout.guard(networks)}) {
				return false
			}
		case strings.HasPrefix(name, "way-"):
			return false
		default:
			t.others = append(t.others, name)
		}
	}
	slices.Sort(t.others)
	return true
}

// readElements reads all elements. It returns nft.ErrUnstable if there are elements that this package never makes. It
// allocates room for as many elements as want has.
func (t *Table) readElements(want *services.Table) (*services.Table, error) {
	have := services.NewTable()
	have.Services, have.Groups = make(map[services.Address]services.Target, len(want.Services)), make(map[services.GroupID]services.Group, len(want.Groups))
	p := parser{have, want, make(map[services.GroupID]int), make(map[services.GroupID]int)}
	var list []nft.Element
	for i := range t.layout.table.Sets {
		s := &t.layout.table.Sets[i]
		if s.Name == clientsMap { // rules in the kernel add clients, and timeouts remove them
			continue
		}
		var err error
		if list, err = t.conn.ReadElements(t.layout.table, s.Name, &nft.Arena{}, list); err != nil {
			return nil, err
		}
		for j := range list {
			if err := p.parse(s, &list[j]); err != nil {
				return nil, err
			}
		}
	}
	return have, p.complete()
}

// halves reports whether a lead has a way without a group or a group without a way.
func halves[K comparable](targets map[K]services.Target) bool {
	for _, t := range targets {
		if t.Lead.HasBackends() != (t.Lead.Group != 0) || t.Outside.HasBackends() != (t.Outside.Group != 0) {
			return true
		}
	}
	return false
}

// parser converts elements to the services.Table that they represent.
type parser struct {
	have, want *services.Table
	ids, stay  map[services.GroupID]int // how many elements there are of groups whose clients stay
}

// complete returns nft.ErrUnstable if elements are missing that belong to others.
func (p *parser) complete() error {
	if halves(p.have.Services) || halves(p.have.Ports) {
		return nft.ErrUnstable
	}
	for id, g := range p.have.Groups {
		if n := len(distinct(g)); g.Sticky && (p.ids[id] != len(g.Backends) || p.stay[id] != n) {
			return nft.ErrUnstable
		}
	}
	return nil
}

// parse adds one element to the table.
func (p *parser) parse(s *nft.Set, e *nft.Element) error {
	have := p.have
	isMap, verdicts := s.Flags&nft.Map != 0, s.HoldsVerdicts()
	if len(e.Key) != s.KeyLen() || isMap && !verdicts && len(e.Value) != s.DataLen() || verdicts && e.Chain == "" {
		return nft.ErrUnstable
	}
	switch name := strings.TrimSuffix(s.Name, groupsOf); name {
	case servicesMap, outsideMap, guardsMap, refusedSet, droppedSet:
		at := parseAddress(e.Key)
		target := have.Services[at]
		parseTarget(&target, s.Name, e)
		have.Services[at] = target
	case portsMap, outsidePortsMap, refusedPortsSet, droppedPortsSet:
		at := parsePort(e.Key)
		target := have.Ports[at]
		parseTarget(&target, s.Name, e)
		have.Ports[at] = target
	case waysMap, outsideWaysMap:
		way := parseWay(e.Key)
		if s.Name != waysOf(way.Where) || e.Chain != wayChain(way) || e.Verdict != nft.GotoVerdict {
			return nft.ErrUnstable
		}
		have.Ways[way] = 1
	case backendsMap, idsMap, stayMap: // in this order
		return p.parseBackend(s.Name, e)
	case hairpinSet:
		a, _ := netip.AddrFromSlice(e.Key[:len(e.Key)/2])
		have.Hairpin[a] = 1
	case membersSet:
		a, _ := netip.AddrFromSlice(e.Key)
		have.Members[a] = 1
	case sources4Set, sources6Set:
		source, ok := parseSource(e, int(s.Parts[1]))
		if !ok {
			return nft.ErrUnstable
		}
		have.Sources[source] = 1
	}
	return nil
}

func parseTarget(target *services.Target, set string, e *nft.Element) {
	switch set {
	case servicesMap, portsMap:
		target.Lead.Way = parseWay(e.Value[4:])
	case outsideMap, outsidePortsMap:
		target.Outside.Way = parseWay(e.Value[4:])
	case servicesMap + groupsOf, portsMap + groupsOf:
		target.Lead.Group = parseGroup(e.Value[4:])
	case outsideMap + groupsOf, outsidePortsMap + groupsOf:
		target.Outside.Group = parseGroup(e.Value[4:])
	case guardsMap:
		target.Guard = e.Chain
	case refusedSet, refusedPortsSet:
		target.Refusal = services.Reject
	case droppedSet, droppedPortsSet:
		target.Refusal = services.Drop
	}
}

func (p *parser) parseBackend(set string, e *nft.Element) error {
	id := parseGroup(e.Key)
	g := p.have.Groups[id]
	if set == stayMap {
		b := parseBackend(e.Value)
		if !g.Sticky || !slices.Contains(g.Backends, b) || !bytes.Equal(e.Key[8:], backendID(nil, b)) {
			return nft.ErrUnstable
		}
		p.stay[id]++
		return nil
	}
	number := int(binary.NativeEndian.Uint32(e.Key[8:]))
	if number >= tooMany {
		return nft.ErrUnstable
	}
	if set == idsMap {
		if !bytes.Equal(e.Value, backendID(nil, at(g.Backends, number))) {
			return nft.ErrUnstable
		}
		g.Sticky = true
		p.ids[id]++
		p.have.Groups[id] = g
		return nil
	}
	if g.Backends == nil {
		g.Backends = make([]netip.AddrPort, 0, len(p.want.Groups[id].Backends))
	}
	for len(g.Backends) <= number {
		g.Backends = append(g.Backends, netip.AddrPort{})
	}
	g.Backends[number] = parseBackend(e.Value)
	p.have.Groups[id] = g
	return nil
}
