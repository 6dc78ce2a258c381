package rules

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/policy/plan"
)

// Read returns what the kernel holds; nil when there are no tables, or none made from this configuration, or when those of
// the families do not agree.
func (t *Tables) Read() (found *plan.Found, err error) {
	err = nft.RetryRead(func() error {
		found, err = t.readOnce()
		return err
	})
	return found, err
}

func (t *Tables) readOnce() (*plan.Found, error) {
	found := plan.NewFound()
	for i, l := range t.layouts {
		contents, err := t.conn.ReadTable(l.table)
		if err != nil || contents == nil {
			return nil, err
		}
		one := plan.NewFound()
		if !l.readChains(contents, one) {
			return nil, nil
		}
		if err := t.readSets(l, contents, one); err != nil {
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
	if len(a.Chains) != len(b.Chains) || len(a.Sets) != len(b.Sets) || a.Guarded != b.Guarded {
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

// readChains reports whether the base chains are correct, and records the chains of pods. Their names are digests of their
// rules, so the rules are not compared. A chain without rules was emptied by another program.
func (l *layout) readChains(contents *nft.Contents, found *plan.Found) bool {
	chains := contents.Chains()
	wanted := *l.table
	if found.Guarded = chains[fromChain] > 0; found.Guarded {
		wanted.Chains = append(l.guards(closed), l.baseChains()...)
	}
	if !contents.Holds(&wanted) {
		return false
	}
	for _, c := range wanted.Chains {
		delete(chains, c.Name)
	}
	for name, rules := range chains {
		if rules == 0 {
			return false
		}
		found.Chains[name] = struct{}{}
	}
	return true
}

func (t *Tables) readSets(l *layout, contents *nft.Contents, found *plan.Found) error {
	var list []nft.Element
	for _, name := range contents.Sets() {
		if name == cutSet {
			continue
		}
		if strings.HasPrefix(name, "nets-") {
			found.Sets[name] = nil
			continue
		}
		var err error
		if list, err = t.conn.ReadElements(l.table, name, &nft.Arena{}, list); err != nil {
			return err
		}
		l.parse(found, name, list)
	}
	return nil
}

// parse adds the elements of a set to found.
func (l *layout) parse(found *plan.Found, name string, elements []nft.Element) {
	size := int(4 * l.family.AddressWords())
	members := make(map[plan.Element]struct{}, len(elements))
	for _, e := range elements {
		if len(e.Key) < size {
			continue
		}
		a, _ := netip.AddrFromSlice(e.Key[:size])
		switch name {
		case ingressMap:
			found.Verdicts[plan.Ingress][a] = e.Chain
		case egressMap:
			found.Verdicts[plan.Egress][a] = e.Chain
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
