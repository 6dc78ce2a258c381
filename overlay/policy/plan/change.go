package plan

import (
	"maps"
	"net/netip"
	"slices"
)

// Kind is the kind of elements of a set.
type Kind uint8

// Kinds of sets.
const (
	Addresses Kind = iota // of pods
	Ports                 // addresses with protocol and port
	Networks              // ranges of addresses
)

// Set is a set to make.
type Set struct {
	Name     string
	Kind     Kind
	Elements []Element
	Ranges   []Range // of Networks
}

// Change brings the kernel from what it holds to what it should hold. It is applied completely or not at all.
type Change struct {
	// Rebuild: all tables are replaced first.
	Rebuild bool

	NewSets   []Set
	NewChains []Chain // no chain jumps to a later one
	// Add and Remove are elements of existing sets, by the set's name.
	Add, Remove map[string][]Element
	// RemoveVerdicts are pods' addresses that lose their chain, AddVerdicts the addresses that get one; an address in both
	// changes its chain.
	RemoveVerdicts, AddVerdicts [directions]map[netip.Addr]string
	// Self are addresses that may connect to themselves although policies isolate them. Known are the addresses of this
	// node's pods, while Guard needs them.
	AddSelf, RemoveSelf, AddKnown, RemoveKnown []netip.Addr
	// Guard says whether unknown addresses on the bridge are blocked; nil: no change.
	Guard *bool

	OldChains []string // no chain comes before one that jumps to it
	OldSets   []string
}

// Chain is a chain to make.
type Chain struct {
	Name  string
	Rules []Rule
}

// Empty tells whether there is nothing to do.
func (c *Change) Empty() bool {
	return !c.Rebuild && len(c.NewSets)+len(c.NewChains)+len(c.Add)+len(c.Remove)+len(c.OldChains)+len(c.OldSets) == 0 &&
		len(c.AddSelf)+len(c.RemoveSelf)+len(c.AddKnown)+len(c.RemoveKnown) == 0 && c.Guard == nil &&
		len(c.RemoveVerdicts[Ingress])+len(c.RemoveVerdicts[Egress])+len(c.AddVerdicts[Ingress])+len(c.AddVerdicts[Egress]) == 0
}

// Found is what the kernel holds, as it was read.
type Found struct {
	Chains      map[string]struct{}
	Sets        map[string]map[Element]struct{} // of Networks: nil
	Verdicts    [directions]map[netip.Addr]string
	Self, Known map[netip.Addr]struct{}
	Guarded     bool
}

// NewFound returns the content of an empty table.
func NewFound() *Found {
	f := &Found{
		Chains: map[string]struct{}{}, Sets: map[string]map[Element]struct{}{},
		Self: map[netip.Addr]struct{}{}, Known: map[netip.Addr]struct{}{},
	}
	for d := range f.Verdicts {
		f.Verdicts[d] = map[netip.Addr]string{}
	}
	return f
}

// Add merges the content of another family's table; chains and names of sets are the same in all families.
func (f *Found) Add(o *Found) {
	maps.Copy(f.Chains, o.Chains)
	for name, elements := range o.Sets {
		if f.Sets[name] == nil {
			f.Sets[name] = elements
		} else {
			maps.Copy(f.Sets[name], elements)
		}
	}
	for d := range directions {
		maps.Copy(f.Verdicts[d], o.Verdicts[d])
	}
	maps.Copy(f.Self, o.Self)
	maps.Copy(f.Known, o.Known)
	f.Guarded = f.Guarded || o.Guarded
}

// baseline is the known content of the kernel's tables.
type baseline struct {
	*Found
	unknown bool
	// read are the sets whose elements Found has. For all other sets, members.pending is the difference.
	read map[string]struct{}
}

// ForgetKernel records that the content of the kernel's tables is unknown: the next change replaces everything.
func (s *State) ForgetKernel() { s.kernel = baseline{Found: NewFound(), unknown: true} }

// AssumeKernel sets the content of the kernel's tables.
func (s *State) AssumeKernel(f *Found) {
	s.kernel = baseline{Found: f, read: map[string]struct{}{}}
	for name := range f.Sets {
		s.kernel.read[name] = struct{}{}
	}
}

// Change returns the difference between the kernel and the state. No other method may be called before Accept or
// ForgetKernel.
func (s *State) Change() *Change {
	s.build()
	c := &Change{Rebuild: s.kernel.unknown, Add: map[string][]Element{}, Remove: map[string][]Element{}}
	s.changeSets(c)
	s.changeChains(c)
	for d := range directions {
		c.RemoveVerdicts[d], c.AddVerdicts[d] = changeVerdicts(s.kernel.Verdicts[d], s.layout.verdicts[d])
	}
	known, guard := s.known()
	c.AddSelf, c.RemoveSelf = changeAddresses(s.kernel.Self, s.layout.self)
	c.AddKnown, c.RemoveKnown = changeAddresses(s.kernel.Known, known)
	if guard != s.kernel.Guarded {
		c.Guard = &guard
	}
	return c
}

// Accept records that the last Change was applied.
func (s *State) Accept() {
	f := NewFound()
	for name := range s.layout.chains {
		f.Chains[name] = struct{}{}
	}
	for name := range s.layout.ranges {
		f.Sets[name] = nil
	}
	for name, m := range s.groups {
		f.Sets[name] = nil
		clear(m.pending)
	}
	f.Verdicts, f.Self = s.layout.verdicts, s.layout.self
	f.Known, f.Guarded = s.known()
	s.kernel = baseline{Found: f}
}

// known returns the addresses of this node's pods if unknown addresses must be blocked.
func (s *State) known() (known map[netip.Addr]struct{}, guard bool) {
	known = map[netip.Addr]struct{}{}
	if len(s.unlocated) == 0 {
		return known, false
	}
	for _, p := range s.local {
		for _, a := range p.Addresses {
			known[a] = struct{}{}
		}
	}
	return known, true
}

// build brings the layout up to date, and adds and removes groups.
func (s *State) build() {
	if !s.stale {
		return
	}
	s.stale = false
	s.layout = buildLayout(s.local, s.policies, func(p *Pod, a netip.Addr) bool { return s.owners[a] == p })
	for name := range s.groups {
		if _, needed := s.layout.groups[name]; !needed {
			delete(s.groups, name)
		}
	}
	var fresh []*members
	for name, g := range s.layout.groups {
		if s.groups[name] == nil {
			m := &members{group: g, have: map[Element]struct{}{}, pending: map[Element]bool{}}
			s.groups[name] = m
			fresh = append(fresh, m)
		}
	}
	if len(fresh) == 0 {
		return
	}
	for a, p := range s.owners {
		space, known := s.spaces[p.Namespace]
		for _, m := range fresh {
			if m.matches(p, space, known) {
				for _, e := range m.elements(p, a) {
					m.change(e, true)
				}
			}
		}
	}
}

// Tightens tells whether a change may end the permission of a connection. The removal of an address that no pod has any more
// does not: no pod is left that could use it.
func (s *State) Tightens(c *Change) bool {
	if c.Rebuild || len(c.AddVerdicts[Ingress])+len(c.AddVerdicts[Egress]) > 0 || c.Guard != nil && *c.Guard {
		return true
	}
	for _, list := range c.Remove {
		for _, e := range list {
			if s.owners[e.Address] != nil {
				return true
			}
		}
	}
	return false
}

func (s *State) changeSets(c *Change) {
	for name, ranges := range s.layout.ranges {
		if _, there := s.kernel.Sets[name]; !there {
			c.NewSets = append(c.NewSets, Set{Name: name, Kind: Networks, Ranges: ranges})
		}
	}
	for name, m := range s.groups {
		found, there := s.kernel.Sets[name]
		_, read := s.kernel.read[name]
		switch {
		case !there:
			c.NewSets = append(c.NewSets, Set{Name: name, Kind: m.kind(), Elements: slices.Collect(maps.Keys(m.have))})
		case read:
			changeElements(c, name, found, m.have)
		default:
			for e, add := range m.pending {
				if add {
					c.Add[name] = append(c.Add[name], e)
				} else {
					c.Remove[name] = append(c.Remove[name], e)
				}
			}
		}
	}
	for name := range s.kernel.Sets {
		_, group := s.groups[name]
		if _, ranges := s.layout.ranges[name]; !group && !ranges {
			c.OldSets = append(c.OldSets, name)
		}
	}
}

func (m *members) kind() Kind {
	if m.port != "" {
		return Ports
	}
	return Addresses
}

func changeElements(c *Change, name string, have, want map[Element]struct{}) {
	for e := range want {
		if _, ok := have[e]; !ok {
			c.Add[name] = append(c.Add[name], e)
		}
	}
	for e := range have {
		if _, ok := want[e]; !ok {
			c.Remove[name] = append(c.Remove[name], e)
		}
	}
}

func (s *State) changeChains(c *Change) {
	for name, rules := range s.layout.chains {
		if _, there := s.kernel.Chains[name]; !there {
			c.NewChains = append(c.NewChains, Chain{name, rules})
		}
	}
	slices.SortFunc(c.NewChains, func(a, b Chain) int { return LeavesFirst(a.Name, b.Name) })
	for name := range s.kernel.Chains {
		if _, wanted := s.layout.chains[name]; !wanted {
			c.OldChains = append(c.OldChains, name)
		}
	}
	slices.SortFunc(c.OldChains, func(a, b string) int { return LeavesFirst(b, a) })
}

func changeVerdicts(have, want map[netip.Addr]string) (gone, now map[netip.Addr]string) {
	gone, now = map[netip.Addr]string{}, map[netip.Addr]string{}
	for a, chain := range have {
		if want[a] != chain {
			gone[a] = chain
		}
	}
	for a, chain := range want {
		if have[a] != chain {
			now[a] = chain
		}
	}
	return gone, now
}

func changeAddresses(have, want map[netip.Addr]struct{}) (add, remove []netip.Addr) {
	for a := range want {
		if _, ok := have[a]; !ok {
			add = append(add, a)
		}
	}
	for a := range have {
		if _, ok := want[a]; !ok {
			remove = append(remove, a)
		}
	}
	return add, remove
}
