package rules

import (
	"encoding/binary"
	"net/netip"

	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/policy/plan"
)

// addTo adds the steps for one family: first new objects, then references to them, then removals.
func (l *layout) addTo(out *nft.Change, c *plan.Change) {
	if c.Rebuild {
		out.ReplaceTable(l.table)
	}
	for _, s := range c.NewSets {
		out.AddSet(l.table, l.set(s))
		out.SetElements(l.table, s.Name, nft.Elements{Add: append(l.elements(s.Elements), l.ranges(s.Ranges)...)})
	}
	for _, chain := range c.NewChains {
		out.AddChain(l.table, l.chain(chain))
	}
	l.addElements(out, c)
	if c.Guard != nil {
		wanted := open
		if *c.Guard {
			wanted = closed
		}
		for _, chain := range l.guards(wanted) {
			out.ReplaceRules(l.table, chain)
		}
	}
	out.DeleteChains(l.table, c.OldChains)
	for _, name := range c.OldSets {
		out.DeleteSet(l.table, name)
	}
}

func (l *layout) addElements(out *nft.Change, c *plan.Change) {
	for name, list := range c.Remove {
		out.SetElements(l.table, name, nft.Elements{Delete: l.elements(list)})
	}
	for name, list := range c.Add {
		out.SetElements(l.table, name, nft.Elements{Add: l.elements(list)})
	}
	for d, name := range verdictMaps {
		out.SetElements(l.table, name, nft.Elements{Delete: l.verdicts(c.RemoveVerdicts[d]), Add: l.verdicts(c.AddVerdicts[d])})
	}
	out.SetElements(l.table, selfSet, nft.Elements{Delete: l.pairs(c.RemoveSelf), Add: l.pairs(c.AddSelf)})
	out.SetElements(l.table, knownSet, nft.Elements{Delete: l.addresses(c.RemoveKnown), Add: l.addresses(c.AddKnown)})
}

// portKey appends a protocol and ports, laid out as the kernel does concatenations: every part padded to four bytes.
func portKey(key []byte, protocol plan.Protocol, ports ...uint16) []byte {
	key = append(key, byte(protocol), 0, 0, 0)
	for _, p := range ports {
		key = append(binary.BigEndian.AppendUint16(key, p), 0, 0)
	}
	return key
}

// elements returns the elements of this family. So does each function below.
func (l *layout) elements(list []plan.Element) []nft.Element {
	var out []nft.Element
	for _, e := range list {
		if !l.family.Has(e.Address) {
			continue
		}
		key := e.Address.AsSlice()
		if e.Protocol != 0 {
			key = portKey(key, e.Protocol, e.Port)
		}
		out = append(out, nft.Element{Key: key})
	}
	return out
}

func (l *layout) addresses(list []netip.Addr) []nft.Element {
	var out []nft.Element
	for _, a := range list {
		if l.family.Has(a) {
			out = append(out, nft.Element{Key: a.AsSlice()})
		}
	}
	return out
}

// pairs returns elements with each address twice.
func (l *layout) pairs(list []netip.Addr) []nft.Element {
	out := l.addresses(list)
	for i, e := range out {
		out[i].Key = append(e.Key, e.Key...)
	}
	return out
}

func (l *layout) verdicts(of map[netip.Addr]string) []nft.Element {
	var out []nft.Element
	for a, chain := range of {
		if l.family.Has(a) {
			out = append(out, nft.Element{Key: a.AsSlice(), Chain: chain, Verdict: nft.GotoVerdict})
		}
	}
	return out
}

// ranges returns two elements for each range: one with its first address, and one that ends it before the address after its
// last. The last of all addresses has none after it, so that range has no end.
func (l *layout) ranges(list []plan.Range) []nft.Element {
	var out []nft.Element
	for _, r := range list {
		if !l.family.Has(r.From) {
			continue
		}
		out = append(out, nft.Element{Key: r.From.AsSlice()})
		if after := r.To.Next(); after.IsValid() {
			out = append(out, nft.Element{Key: after.AsSlice(), EndsRange: true})
		}
	}
	return out
}
