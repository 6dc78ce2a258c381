package kernel

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/policy/plan"
)

// Read returns what the kernel holds; nil when there are no tables, or none made from this configuration.
func (t *Tables) Read() (*plan.Found, error) {
	found := plan.NewFound()
	for i, table := range t.tables {
		exists, err := t.exists(table)
		if err != nil || !exists {
			return nil, err
		}
		one := plan.NewFound()
		right, err := t.readChains(table, one)
		if err != nil || !right {
			return nil, err
		}
		if err := t.readSets(table, one); err != nil {
			return nil, err
		}
		if i > 0 && !sameNames(found, one) {
			return nil, nil
		}
		found.Add(one)
	}
	return found, nil
}

func sameNames(a, b *plan.Found) bool {
	if len(a.Chains) != len(b.Chains) || len(a.Sets) != len(b.Sets) || a.Guard != b.Guard {
		return false
	}
	for name := range a.Chains {
		if _, ok := b.Chains[name]; !ok {
			return false
		}
	}
	for name := range a.Sets {
		if _, ok := b.Sets[name]; !ok {
			return false
		}
	}
	return true
}

func (t *Tables) exists(of *table) (bool, error) {
	tables, err := t.conn.ListTablesOfFamily(of.Family)
	if err != nil {
		return false, err
	}
	for _, other := range tables {
		if other.Name == Name {
			return true, nil
		}
	}
	return false, nil
}

// readChains tells whether the base is ours and whole. A chain without rules was left by somebody else's hand: none of ours
// is empty.
func (t *Tables) readChains(of *table, found *plan.Found) (bool, error) {
	chains, err := t.conn.ListChainsOfTableFamily(of.Family)
	if err != nil {
		return false, err
	}
	rules := make(map[string]int)
	for _, c := range chains {
		if c.Table.Name != Name {
			continue
		}
		list, err := t.conn.GetRules(of.Table, c)
		if err != nil {
			return false, err
		}
		rules[c.Name] = len(list)
	}
	found.Guard = rules[fromChain] > 0
	for _, c := range of.base() {
		n, there := rules[c.name]
		if c.name == fromChain || c.name == toChain {
			if there = there && n <= 1 && (n == 1) == found.Guard; !there {
				return false, nil
			}
		} else if !there || n != len(c.rules) {
			return false, nil
		}
		delete(rules, c.name)
	}
	for name, n := range rules {
		if n == 0 {
			return false, nil
		}
		found.Chains[name] = struct{}{}
	}
	return true, nil
}

func (t *Tables) readSets(of *table, found *plan.Found) error {
	sets, err := t.conn.GetSets(of.Table)
	if err != nil {
		return err
	}
	for _, s := range sets {
		s.Table = of.Table
		if s.Name == cutSet {
			continue
		}
		if strings.HasPrefix(s.Name, "nets-") {
			found.Sets[s.Name] = nil
			continue
		}
		elements, err := t.conn.GetSetElements(s)
		if err != nil {
			return err
		}
		of.read(found, s.Name, elements)
	}
	return nil
}

func (t *table) read(found *plan.Found, name string, elements []nftables.SetElement) {
	size := int(4 * t.words())
	members := map[plan.Element]struct{}{}
	for _, e := range elements {
		if len(e.Key) < size {
			continue
		}
		a, _ := netip.AddrFromSlice(e.Key[:size])
		switch name {
		case ingressMap:
			found.Verdicts[plan.Ingress][a] = verdictChain(e.Val)
		case egressMap:
			found.Verdicts[plan.Egress][a] = verdictChain(e.Val)
		case selfSet:
			found.Self[a] = struct{}{}
		case knownSet:
			found.Known[a] = struct{}{}
		default:
			member := plan.Element{Address: a}
			if rest := e.Key[size:]; len(rest) >= 8 {
				member.Protocol, member.Port = plan.Protocol(rest[0]), binary.BigEndian.Uint16(rest[4:])
			}
			members[member] = struct{}{}
		}
	}
	switch name {
	case ingressMap, egressMap, selfSet, knownSet:
	default:
		found.Sets[name] = members
	}
}

// verdictChain finds the chain in a verdict as the kernel sends it: a list of attributes, of which type 2 is the name.
func verdictChain(raw []byte) string {
	const header, chain = 4, 2
	for len(raw) >= header {
		size, kind := int(binary.NativeEndian.Uint16(raw)), binary.NativeEndian.Uint16(raw[2:])&0x3fff
		if size < header || size > len(raw) {
			return ""
		}
		if kind == chain {
			return strings.TrimRight(string(raw[header:size]), "\x00")
		}
		raw = raw[min((size+3)&^3, len(raw)):]
	}
	return ""
}

// Remove deletes the tables from the namespace behind ns. It is no error if there are none.
func Remove(ns int) error {
	t, err := Open(Config{}, ns)
	if err != nil {
		return err
	}
	defer t.Close()
	if err := t.Remove(); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}
