package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/services"
)

// tooMany is a number of backends no group has; an element beyond it is not ours.
const tooMany = 1 << 16

// found is what the kernel holds, beside elements.
type found struct {
	chains map[string]string   // name ─► what it hooks into, as text
	rules  map[string][]string // chain ─► the rules' tags
	sets   map[string]set      // without types
}

// read returns what the kernel holds; nil when there is no table, or one not made from this configuration, or one whose
// rules are not as they should be. Rules of guards are known by name only; those wanted are compared.
func (t *Table) read(want *services.Table) (*services.Table, error) {
	for try := 1; ; try++ {
		have, err := t.readAll(want)
		if !errors.Is(err, errStrange) && !errors.Is(err, unix.ENOENT) { // gone meanwhile
			return have, err
		}
		if try == readTries {
			return nil, nil
		}
		time.Sleep(readPause)
	}
}

// The kernel lists a map whose hash table it is about to enlarge with some elements twice and some not at all. It does so for
// a moment after many came.
const (
	readTries = 4
	readPause = 25 * time.Millisecond
)

func (t *Table) readAll(want *services.Table) (*services.Table, error) {
	exists, err := t.exists()
	if err != nil || !exists {
		return nil, err
	}
	f, err := t.find()
	if err != nil || !t.baseIsRight(f) {
		return nil, err
	}
	have, err := t.readElements(want)
	if err != nil || !t.chainsAreRight(f, have, want) {
		return nil, err
	}
	return have, nil
}

// exists tells whether there is a table that is not dormant; that of somebody else is an error.
func (t *Table) exists() (yes bool, err error) {
	const flags, owner = 2, 7       // NFTA_TABLE_FLAGS, NFTA_TABLE_OWNER
	const dormant, owned = 0x1, 0x2 // NFT_TABLE_F_…
	var foreign bool
	err = t.socket.dump(unix.NFT_MSG_GETTABLE, t.family(), nil, func() { yes, foreign = false, false }, func(family byte, body []byte) error {
		if family == t.family() && findText(body, unix.NFTA_TABLE_NAME) == Name {
			yes = findU32(body, flags)&dormant == 0
			foreign = findU32(body, flags)&owned != 0 && findU32(body, owner) != t.socket.port
		}
		return nil
	})
	if err == nil && foreign {
		err = ErrOwned
	}
	return yes, err
}

func (t *Table) find() (*found, error) {
	f := &found{}
	ours := func(w *wire) { w.text(1, Name) } // the table, in a message of any kind
	err := t.socket.dump(unix.NFT_MSG_GETCHAIN, t.family(), ours, func() { f.chains = map[string]string{} }, func(family byte, body []byte) error {
		if family == t.family() && findText(body, unix.NFTA_CHAIN_TABLE) == Name {
			f.chains[findText(body, unix.NFTA_CHAIN_NAME)] = hookText(body)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = t.socket.dump(unix.NFT_MSG_GETRULE, t.family(), ours, func() { f.rules = map[string][]string{} }, func(_ byte, body []byte) error {
		if findText(body, unix.NFTA_RULE_TABLE) == Name {
			chain := findText(body, unix.NFTA_RULE_CHAIN)
			f.rules[chain] = append(f.rules[chain], string(find(body, unix.NFTA_RULE_USERDATA)))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = t.socket.dump(unix.NFT_MSG_GETSET, t.family(), ours, func() { f.sets = map[string]set{} }, func(_ byte, body []byte) error {
		if findText(body, unix.NFTA_SET_TABLE) == Name {
			s := set{name: findText(body, unix.NFTA_SET_NAME), flags: findU32(body, unix.NFTA_SET_FLAGS)}
			s.key.Bytes, s.data.Bytes = findU32(body, unix.NFTA_SET_KEY_LEN), findU32(body, unix.NFTA_SET_DATA_LEN)
			f.sets[s.name] = s
		}
		return nil
	})
	return f, err
}

// hookText is where a chain hooks in; "" for one that does not.
func hookText(body []byte) string {
	hook := find(body, unix.NFTA_CHAIN_HOOK)
	if hook == nil {
		return ""
	}
	return hookName(findText(body, unix.NFTA_CHAIN_TYPE), findU32(hook, unix.NFTA_HOOK_HOOKNUM), findU32(hook, unix.NFTA_HOOK_PRIORITY),
		findU32(body, unix.NFTA_CHAIN_POLICY))
}

func hookName(kind string, numbers ...uint32) string {
	raw := []byte(kind)
	for _, n := range numbers {
		raw = binary.BigEndian.AppendUint32(raw, n)
	}
	return string(raw)
}

// baseIsRight tells whether the sets and the base chains are those this configuration makes.
func (t *Table) baseIsRight(f *found) bool {
	for i := range t.sets {
		s := &t.sets[i]
		other, ok := f.sets[s.name]
		verdicts := s.data.Name == "verdict"
		if !ok || other.flags != s.flags || other.key.Bytes != s.keyLen() || !verdicts && other.data.Bytes != s.dataLen() {
			return false
		}
	}
	for _, c := range t.base() {
		hook := ""
		if c.kind != "" {
			hook = hookName(string(c.kind), uint32(*c.hook), uint32(*c.priority), uint32(nftables.ChainPolicyAccept))
		}
		if have, ok := f.chains[c.name]; !ok || have != hook || !t.same(f, c.name, c.rules) {
			return false
		}
	}
	return true
}

func (t *Table) same(f *found, chain string, rules [][]expr.Any) bool {
	have := f.rules[chain]
	if len(have) != len(rules) {
		return false
	}
	for i, exprs := range rules {
		body, err := expressions(t.family(), exprs)
		if err != nil || string(tag(body)) != have[i] {
			return false
		}
	}
	return true
}

// chainsAreRight compares the chains of ways and guards, and notes those of others.
func (t *Table) chainsAreRight(f *found, have, want *services.Table) bool {
	names := make(map[string]struct{})
	for _, c := range t.base() {
		names[c.name] = struct{}{}
	}
	for w := range have.Ways {
		names[wayChain(w)] = struct{}{}
		if !t.same(f, wayChain(w), t.way(w)) {
			return false
		}
	}
	t.others = nil
	for name := range maps.Keys(f.chains) {
		_, known := names[name]
		switch {
		case known:
		case strings.HasPrefix(name, "from-"):
			have.Guards[name] = want.Guards[name]
			if networks, ok := want.Guards[name]; ok && !t.same(f, name, t.guard(networks)) {
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

// errStrange says that an element is none we make.
var errStrange = errors.New("strange element")

// readElements returns errStrange if there are elements we do not make. There is room for as much as is wanted.
func (t *Table) readElements(want *services.Table) (*services.Table, error) {
	have := services.NewTable()
	have.Services, have.Groups = make(map[services.Address]services.Target, len(want.Services)), make(map[services.GroupID]services.Group, len(want.Groups))
	r := reading{have, want, make(map[services.GroupID]int), make(map[services.GroupID]int)}
	var list []element
	for i := range t.sets {
		s := &t.sets[i]
		if s.name == clientsMap { // clients come and go by themselves
			continue
		}
		var mem slab
		err := t.socket.dump(unix.NFT_MSG_GETSETELEM, t.family(), func(w *wire) {
			w.text(unix.NFTA_SET_ELEM_LIST_TABLE, Name)
			w.text(unix.NFTA_SET_ELEM_LIST_SET, s.name)
		}, func() { list = list[:0] }, func(_ byte, body []byte) error {
			attributes(find(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(_ uint16, value []byte) bool {
				list = append(list, parseElement(value, &mem))
				return true
			})
			return nil
		})
		for j := 0; err == nil && j < len(list); j++ {
			err = r.take(s, &list[j])
		}
		if err != nil {
			return nil, err
		}
	}
	if halves(have.Services) || halves(have.Ports) {
		return nil, errStrange
	}
	for id, g := range have.Groups {
		if n := len(distinct(g)); g.Sticky && (r.ids[id] != len(g.Backends) || r.stay[id] != n) { // not all of them
			return nil, errStrange
		}
	}
	return have, nil
}

// halves tells whether there is a lead with a way but no group, or the other way round.
func halves[K comparable](targets map[K]services.Target) bool {
	for _, t := range targets {
		if t.Lead.Somewhere() != (t.Lead.Group != 0) || t.Outside.Somewhere() != (t.Outside.Group != 0) {
			return true
		}
	}
	return false
}

// reading is what elements come to.
type reading struct {
	have, want *services.Table
	ids, stay  map[services.GroupID]int // how many elements there are of groups whose clients stay
}

// take puts an element into the table it stands for.
func (r *reading) take(s *set, e *element) error {
	have := r.have
	isMap, verdicts := s.flags&setMap != 0, s.data.Name == "verdict"
	if len(e.key) != int(s.keyLen()) || isMap && !verdicts && len(e.value) != int(s.dataLen()) || verdicts && e.chain == "" {
		return errStrange
	}
	switch name := strings.TrimSuffix(s.name, groupsOf); name {
	case servicesMap, outsideMap, guardsMap, refusedSet, droppedSet:
		at := parseAddress(e.key)
		target := have.Services[at]
		takeTarget(&target, s.name, e)
		have.Services[at] = target
	case portsMap, outsidePortsMap, refusedPortsSet, droppedPortsSet:
		at := parsePort(e.key)
		target := have.Ports[at]
		takeTarget(&target, s.name, e)
		have.Ports[at] = target
	case waysMap, outsideWaysMap:
		way := parseWay(e.key)
		if s.name != waysOf(way.Where) || e.chain != wayChain(way) || e.verdict != unix.NFT_GOTO {
			return errStrange
		}
		have.Ways[way] = 1
	case backendsMap, idsMap, stayMap: // in this order
		return r.takeBackend(s.name, e)
	case hairpinSet:
		a, _ := netip.AddrFromSlice(e.key[:len(e.key)/2])
		have.Hairpin[a] = 1
	case membersSet:
		a, _ := netip.AddrFromSlice(e.key)
		have.Members[a] = 1
	}
	return nil
}

func takeTarget(target *services.Target, set string, e *element) {
	switch set {
	case servicesMap, portsMap:
		target.Lead.Way = parseWay(e.value[4:])
	case outsideMap, outsidePortsMap:
		target.Outside.Way = parseWay(e.value[4:])
	case servicesMap + groupsOf, portsMap + groupsOf:
		target.Lead.Group = parseGroup(e.value[4:])
	case outsideMap + groupsOf, outsidePortsMap + groupsOf:
		target.Outside.Group = parseGroup(e.value[4:])
	case guardsMap:
		target.Guard = e.chain
	case refusedSet, refusedPortsSet:
		target.Lost = services.Reject
	case droppedSet, droppedPortsSet:
		target.Lost = services.Drop
	}
}

func (r *reading) takeBackend(set string, e *element) error {
	id := parseGroup(e.key)
	g := r.have.Groups[id]
	if set == stayMap {
		b := parseBackend(e.value)
		if !g.Sticky || !slices.Contains(g.Backends, b) || !bytes.Equal(e.key[8:], backendID(nil, b)) {
			return errStrange
		}
		r.stay[id]++
		return nil
	}
	number := int(binary.NativeEndian.Uint32(e.key[8:]))
	if number >= tooMany {
		return errStrange
	}
	if set == idsMap {
		if !bytes.Equal(e.value, backendID(nil, at(g.Backends, number))) {
			return errStrange
		}
		g.Sticky = true
		r.ids[id]++
		r.have.Groups[id] = g
		return nil
	}
	if g.Backends == nil {
		g.Backends = make([]netip.AddrPort, 0, len(r.want.Groups[id].Backends))
	}
	for len(g.Backends) <= number {
		g.Backends = append(g.Backends, netip.AddrPort{})
	}
	g.Backends[number] = parseBackend(e.value)
	r.have.Groups[id] = g
	return nil
}
