package nft

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/routing"
)

// A transaction carries at most so many chains or elements: the kernel answers each message, and the answers must fit the
// socket's buffer.
const (
	chainsPerBatch   = 64
	elementsPerBatch = 256
)

// change brings the kernel from one table to another: first what is new, then what leads there, then what is gone. Each
// transaction leaves the table usable.
func (t *Table) change(have, want *routing.Table) error {
	if err := t.addAffinity(have, want); err != nil {
		return err
	}
	if err := t.addChains(have, want); err != nil {
		return err
	}
	if err := t.changeElements(have, want); err != nil {
		return err
	}
	if err := t.removeChains(have, want); err != nil {
		return err
	}
	return t.trimAffinity(have, want)
}

func (t *Table) addAffinity(have, want *routing.Table) error {
	for _, name := range slices.Sorted(maps.Keys(want.Affinity)) {
		if _, ok := have.Affinity[name]; ok {
			continue
		}
		if err := t.conn.AddSet(t.sets.affinity(name, want.Affinity[name].Timeout), nil); err != nil {
			return err
		}
	}
	return t.conn.Flush()
}

// addChains adds chains that lead to others last.
func (t *Table) addChains(have, want *routing.Table) error {
	var names []string
	for name := range want.Chains {
		if _, ok := have.Chains[name]; !ok {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, leavesFirst)
	for batch := range slices.Chunk(names, chainsPerBatch) {
		for _, name := range batch {
			c := t.conn.AddChain(&nftables.Chain{Table: t.table, Name: name})
			t.conn.FlushChain(c) // a half-made one of an earlier failure
			for _, r := range want.Chains[name] {
				if err := t.addRule(c, r); err != nil {
					return err
				}
			}
		}
		if err := t.conn.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// leavesFirst orders chains so that none comes before one it may go to: ext goes to svc, lb goes to ext.
func leavesFirst(a, b string) int {
	rank := func(name string) int {
		switch prefix, _, _ := strings.Cut(name, "-"); prefix {
		case "lb":
			return 2
		case "ext":
			return 1
		}
		return 0
	}
	if d := rank(a) - rank(b); d != 0 {
		return d
	}
	return strings.Compare(a, b)
}

func (t *Table) removeChains(have, want *routing.Table) error {
	var names []string
	for name := range have.Chains {
		if _, ok := want.Chains[name]; !ok {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return leavesFirst(b, a) })
	for batch := range slices.Chunk(names, chainsPerBatch) {
		for _, name := range batch {
			c := &nftables.Chain{Table: t.table, Name: name}
			t.conn.FlushChain(c)
			t.conn.DelChain(c)
		}
		if err := t.conn.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// element is a map entry to remove, to add, or both.
type element struct {
	set      *nftables.Set
	old, now *nftables.SetElement
}

func (t *Table) changeElements(have, want *routing.Table) error {
	var list []element
	list = diff(list, t.sets.services, have.Services, want.Services, addressKey, gotoChain)
	list = diff(list, t.sets.nodePorts, have.NodePorts, want.NodePorts, portKey, gotoChain)
	list = diff(list, t.sets.nobody, have.Nobody, want.Nobody, addressKey, fateVerdict)
	list = diff(list, t.sets.nobodyAtPort, have.NobodyAtPort, want.NobodyAtPort, portKey, fateVerdict)
	none := func(struct{}) *expr.Verdict { return nil }
	list = diff(list, t.sets.hairpin, have.Hairpin, want.Hairpin, hairpinKey, none)
	list = diff(list, t.sets.members, have.Members, want.Members, memberKey, none)
	for batch := range slices.Chunk(list, elementsPerBatch) {
		for _, e := range batch {
			if e.old != nil {
				if err := t.conn.SetDeleteElements(e.set, []nftables.SetElement{*e.old}); err != nil {
					return err
				}
			}
			if e.now != nil {
				if err := t.conn.SetAddElements(e.set, []nftables.SetElement{*e.now}); err != nil {
					return err
				}
			}
		}
		if err := t.conn.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// diff appends what turns the map have into the map want.
func diff[K, V comparable](list []element, set *nftables.Set, have, want map[K]V, key func(K) []byte,
	verdict func(V) *expr.Verdict) []element {
	for k, v := range have {
		now, ok := want[k]
		if ok && now == v {
			continue
		}
		e := element{set: set, old: &nftables.SetElement{Key: key(k), VerdictData: verdict(v)}}
		if ok {
			e.now = &nftables.SetElement{Key: key(k), VerdictData: verdict(now)}
		}
		list = append(list, e)
	}
	for k, v := range want {
		if _, ok := have[k]; !ok {
			list = append(list, element{set: set, now: &nftables.SetElement{Key: key(k), VerdictData: verdict(v)}})
		}
	}
	return list
}

// trimAffinity makes clients forget backends that are gone, and removes the maps of services that are gone.
func (t *Table) trimAffinity(have, want *routing.Table) error {
	for name, old := range have.Affinity {
		now, ok := want.Affinity[name]
		if !ok {
			t.conn.DelSet(t.sets.affinity(name, old.Timeout))
			continue
		}
		if slices.Equal(old.Backends, now.Backends) {
			continue
		}
		if err := t.forgetClients(name, now); err != nil {
			return err
		}
	}
	return t.conn.Flush()
}

func (t *Table) forgetClients(name string, a routing.Affinity) error {
	set := t.sets.affinity(name, a.Timeout)
	clients, err := t.conn.GetSetElements(set)
	if err != nil {
		return err
	}
	var gone []nftables.SetElement
	for _, c := range clients {
		backend, ok := parseBackend(c.Val, t.cfg.V4)
		if !ok || !slices.Contains(a.Backends, backend) {
			gone = append(gone, nftables.SetElement{Key: c.Key})
		}
	}
	// One transaction each: a client that has expired meanwhile makes its own fail, and only that.
	for _, c := range gone {
		if err := t.conn.SetDeleteElements(set, []nftables.SetElement{c}); err != nil {
			return err
		}
		if err := t.conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// addRule turns a rule into what the kernel runs; a rule with several sources becomes several.
func (t *Table) addRule(c *nftables.Chain, r routing.Rule) error {
	conditions := [][]expr.Any{nil}
	if r.FromLocal {
		conditions[0] = local(true)
	}
	if len(r.From) > 0 {
		conditions = nil
		for _, p := range r.From {
			conditions = append(conditions, t.from(p))
		}
	}
	for _, condition := range conditions {
		rules, err := t.actions(r)
		if err != nil {
			return err
		}
		for _, action := range rules {
			t.addRules(c, [][]expr.Any{slices.Concat(condition, action)})
		}
	}
	return nil
}

func (t *Table) actions(r routing.Rule) ([][]expr.Any, error) {
	switch {
	case r.Mark:
		return [][]expr.Any{t.setMark(true)}, nil
	case r.Drop:
		return [][]expr.Any{{verdict(expr.VerdictDrop, "")}}, nil
	case r.Goto != "":
		return [][]expr.Any{{verdict(expr.VerdictGoto, r.Goto)}}, nil
	}
	return t.balance(r)
}

// balance makes the rules that send a connection to a backend: first to that the client had before, else to a random one.
func (t *Table) balance(r routing.Rule) ([][]expr.Any, error) {
	choose, err := t.choose(r.Balance)
	if err != nil {
		return nil, err
	}
	send := []expr.Any{t.dnat()}
	if r.Sticky == "" || len(r.Balance) == 1 {
		return [][]expr.Any{append(choose, send...)}, nil
	}
	remember := &expr.Dynset{
		SrcRegKey: regClient, SrcRegData: regMain, SetName: r.Sticky, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: r.StickyFor,
	}
	again := []expr.Any{
		t.loadSource(regClient),
		&expr.Lookup{SourceRegister: regClient, DestRegister: regMain, IsDestRegSet: true, SetName: r.Sticky},
		remember,
	}
	first := append(choose, t.loadSource(regClient), remember)
	return [][]expr.Any{append(again, send...), append(first, send...)}, nil
}

// choose puts a random backend's address and port into regMain.
func (t *Table) choose(backends []netip.AddrPort) ([]expr.Any, error) {
	if len(backends) == 1 {
		value := backendValue(backends[0])
		return []expr.Any{
			&expr.Immediate{Register: regMain, Data: value[:len(value)-2]},
			&expr.Immediate{Register: t.portWord(), Data: value[len(value)-2:]},
		}, nil
	}
	numbered := &nftables.Set{
		Table: t.table, Anonymous: true, Constant: true, IsMap: true,
		KeyType: nftables.TypeInteger, DataType: backendType(t.cfg.V4),
	}
	var elements []nftables.SetElement
	for i, b := range backends {
		elements = append(elements, nftables.SetElement{Key: u32(uint32(i)), Val: paddedBackend(b)})
	}
	if err := t.conn.AddSet(numbered, elements); err != nil {
		return nil, err
	}
	return []expr.Any{
		&expr.Numgen{Register: regMain, Modulus: uint32(len(backends)), Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SourceRegister: regMain, DestRegister: regMain, IsDestRegSet: true, SetName: numbered.Name, SetID: numbered.ID},
	}, nil
}

func (t *Table) dnat() expr.Any {
	family := uint32(unix.NFPROTO_IPV6)
	if t.cfg.V4 {
		family = unix.NFPROTO_IPV4
	}
	return &expr.NAT{Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: regMain, RegProtoMin: t.portWord()}
}
