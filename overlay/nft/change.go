package nft

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/services"
)

// elementsLimit bounds one message's elements, in bytes: the length of an attribute has 16 bits.
const elementsLimit = 60 << 10

func (t *Table) begin() *wire {
	w := &wire{family: t.family()}
	w.raw(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	return w
}

func (t *Table) commit(w *wire) error {
	w.raw(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	w.finish()
	err := t.socket.transact(w.buf)
	if errors.Is(err, unix.EPERM) {
		return errors.Join(ErrOwned, err)
	}
	return err
}

// writer brings the kernel from one table to another: first what is new, then what leads there, then what is gone. So it
// may be cut into several transactions, each of which leaves the table usable.
type writer struct {
	*wire
	t   *Table
	err error
}

// change carries out what differs; anew: in place of whatever table there is.
func (t *Table) change(want *services.Table, d *services.Delta, anew bool) error {
	w := &writer{wire: t.begin(), t: t}
	if anew {
		t.makeTable(w.wire)
		for _, c := range t.base() {
			w.rules(c.name, c.rules)
		}
	}
	w.addWays(d.Ways)
	w.addGuards(d.Guards, want.Guards)
	groups := elementsOfGroups(d.Groups)
	w.write(backendsMap, groups.backends)
	w.write(stayMap, changes{add: groups.stay.add})
	w.write(idsMap, groups.ids)
	w.targets(d)
	w.write(idsMap, groups.idsGone)
	w.write(stayMap, changes{del: groups.stay.del})
	w.write(backendsMap, groups.gone)
	w.write(hairpinSet, presence(d.Hairpin, hairpinKey))
	w.write(membersSet, presence(d.Members, appendAddr))
	w.removeChains(d)
	if w.err != nil {
		return w.err
	}
	return t.commit(w.wire)
}

// cut ends the transaction here if it is large already.
func (w *writer) cut() {
	if w.err == nil && len(w.buf) > w.t.socket.limit-2*elementsLimit {
		w.err = w.t.commit(w.wire)
		w.wire = w.t.begin()
	}
}

func (w *writer) chain(name string, rules [][]expr.Any) {
	c := baseChain{name: name}
	c.make(w.wire)
	w.rules(name, rules)
}

func (w *writer) rules(chain string, rules [][]expr.Any) {
	for _, exprs := range rules {
		w.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND)
		w.text(unix.NFTA_RULE_TABLE, Name)
		w.text(unix.NFTA_RULE_CHAIN, chain)
		body, err := expressions(w.family, exprs)
		if err != nil {
			w.err = err
			return
		}
		at := w.nest(unix.NFTA_RULE_EXPRESSIONS)
		for _, e := range body {
			w.attr(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, e)
		}
		w.unnest(at)
		w.attr(unix.NFTA_RULE_USERDATA, tag(body))
	}
	w.cut()
}

func expressions(family byte, exprs []expr.Any) ([][]byte, error) {
	var out [][]byte
	for _, e := range exprs {
		raw, err := expr.Marshal(family, e)
		if err != nil {
			return nil, err
		}
		out = append(out, raw)
	}
	return out, nil
}

// tag is the comment of a rule, laid out as nft does: kind, length, text.
func tag(rule [][]byte) []byte {
	sum := sha256.Sum256(slices.Concat(rule...))
	text := hex.EncodeToString(sum[:6]) + "\x00"
	return append([]byte{0, byte(len(text))}, text...)
}

func (w *writer) addWays(ways map[services.Way]bool) {
	list := make(map[string]*changes)
	for way, comes := range ways {
		if comes {
			w.chain(wayChain(way), w.t.way(way))
			c := entry(list, waysOf(way.Where))
			c.add = append(c.add, element{key: wayKey(nil, way), chain: wayChain(way), verdict: unix.NFT_GOTO})
		}
	}
	for name, c := range list {
		w.write(name, *c)
	}
}

func entry(list map[string]*changes, name string) *changes {
	if list[name] == nil {
		list[name] = &changes{}
	}
	return list[name]
}

func (w *writer) addGuards(names map[string]bool, guards map[string][]netip.Prefix) {
	for name, comes := range names {
		if comes {
			w.chain(name, w.t.guard(guards[name]))
		}
	}
}

func (w *writer) removeChains(d *services.Delta) {
	var names []string
	list := make(map[string]*changes)
	for way, comes := range d.Ways {
		if !comes {
			names = append(names, wayChain(way))
			c := entry(list, waysOf(way.Where))
			c.del = append(c.del, element{key: wayKey(nil, way), chain: wayChain(way), verdict: unix.NFT_GOTO})
		}
	}
	for name, c := range list {
		w.write(name, *c)
	}
	for name, comes := range d.Guards {
		if !comes {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names { // rules first: they may lead to each other's
		w.message(unix.NFT_MSG_DELRULE, 0)
		w.text(unix.NFTA_RULE_TABLE, Name)
		w.text(unix.NFTA_RULE_CHAIN, name)
	}
	for _, name := range names {
		w.message(unix.NFT_MSG_DELCHAIN, 0)
		w.text(unix.NFTA_CHAIN_TABLE, Name)
		w.text(unix.NFTA_CHAIN_NAME, name)
	}
}

// targets changes the maps of destinations.
func (w *writer) targets(d *services.Delta) {
	at := elementsOfTargets(d.Services, addressKey)
	w.leads(outsideMap, at.outside)
	w.write(guardsMap, at.guard)
	w.leads(servicesMap, at.lead)
	w.write(refusedSet, at.refused)
	w.write(droppedSet, at.dropped)
	at = elementsOfTargets(d.Ports, portKey)
	w.leads(outsidePortsMap, at.outside)
	w.leads(portsMap, at.lead)
	w.write(refusedPortsSet, at.refused)
	w.write(droppedPortsSet, at.dropped)
}

func (w *writer) leads(name string, l ofLeads) {
	w.write(name+groupsOf, l.group)
	w.write(name, l.way)
	w.write(name+groupsOf, l.gone)
}

type ofLeads struct{ way, group, gone changes }

func (l *ofLeads) change(mem *slab, key []byte, old, now services.Lead) {
	if old == now {
		return
	}
	var way, group [2][]byte
	for i, side := range []services.Lead{old, now} {
		if side.Somewhere() {
			way[i], group[i] = wayKey(unused(mem.room(12)), side.Way), groupKey(unused(mem.room(12)), side.Group)
		}
	}
	l.way.valued(key, way[0], way[1])
	staged(&l.group, &l.gone, key, group[0], group[1])
}

type ofTargets struct {
	lead, outside           ofLeads
	guard, refused, dropped changes
}

func elementsOfTargets[K comparable](targets map[K]services.Change[services.Target], key func([]byte, K) []byte) (out ofTargets) {
	var mem slab
	out.lead.expect(len(targets))
	for at, c := range targets {
		k := key(mem.room(longestAddress+8), at)
		out.lead.change(&mem, k, c.Old.Lead, c.New.Lead)
		out.outside.change(&mem, k, c.Old.Outside, c.New.Outside)
		out.guard.guarded(k, c.Old.Guard, c.New.Guard)
		out.refused.present(k, c.Old.Lost == services.Reject, c.New.Lost == services.Reject)
		out.dropped.present(k, c.Old.Lost == services.Drop, c.New.Lost == services.Drop)
	}
	return out
}

// expect makes room for leads that come.
func (l *ofLeads) expect(n int) {
	l.way.add, l.group.add = make([]element, 0, n), make([]element, 0, n)
}

// longestAddress is how many bytes an address has at most.
const longestAddress = 16

type ofGroups struct{ backends, gone, ids, idsGone, stay changes }

func elementsOfGroups(groups map[services.GroupID]services.Change[services.Group]) (out ofGroups) {
	var mem slab
	most := 0
	for _, c := range groups {
		most += len(c.New.Backends)
	}
	out.backends.add = make([]element, 0, most)
	for id, c := range groups {
		old, now := c.Old.Backends, c.New.Backends
		sticky := c.Old.Sticky || c.New.Sticky
		for i := range max(len(old), len(now)) {
			was, is := at(old, i), at(now, i)
			if was == is && !sticky {
				continue
			}
			key := numberedKey(mem.room(12), id, i)
			staged(&out.backends, &out.gone, key, mem.value(was, backendValue), mem.value(is, backendValue))
			if sticky {
				staged(&out.ids, &out.idsGone, key, mem.value(only(was, c.Old.Sticky), backendID), mem.value(only(is, c.New.Sticky), backendID))
			}
		}
		if sticky {
			out.addStay(id, c)
		}
	}
	return out
}

// at is the backend of that number; the invalid one if there is none.
func at(list []netip.AddrPort, i int) (b netip.AddrPort) {
	if i < len(list) {
		b = list[i]
	}
	return b
}

func only(b netip.AddrPort, yes bool) netip.AddrPort {
	if !yes {
		return netip.AddrPort{}
	}
	return b
}

func (s *slab) value(b netip.AddrPort, of func([]byte, netip.AddrPort) []byte) []byte {
	if !b.IsValid() {
		return nil
	}
	return of(s.room(longestAddress+4), b)
}

// staged notes a change among those that come or change, or among those that go.
func staged(change, gone *changes, key, old, now []byte) {
	if now == nil {
		change = gone
	}
	change.valued(key, old, now)
}

func (out *ofGroups) addStay(id services.GroupID, c services.Change[services.Group]) {
	before, after := distinct(c.Old), distinct(c.New)
	for b := range before {
		if _, ok := after[b]; !ok {
			out.stay.del = append(out.stay.del, element{key: stayKey(nil, id, b)})
		}
	}
	for b := range after {
		if _, ok := before[b]; !ok {
			out.stay.add = append(out.stay.add, element{key: stayKey(nil, id, b), value: backendValue(nil, b)})
		}
	}
}

// distinct are the backends clients stay with.
func distinct(g services.Group) map[netip.AddrPort]struct{} {
	out := make(map[netip.AddrPort]struct{})
	for _, b := range g.Backends {
		if g.Sticky && b.IsValid() {
			out[b] = struct{}{}
		}
	}
	return out
}

func presence[K comparable](keys map[K]bool, key func([]byte, K) []byte) (c changes) {
	for k, comes := range keys {
		c.present(key(nil, k), !comes, comes)
	}
	return c
}
