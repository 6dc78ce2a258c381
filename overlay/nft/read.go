package nft

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/google/nftables"

	"github.com/balsahq/balsa/overlay/routing"
)

// read returns what the kernel holds; nil when there is no table, or one not made from this configuration. Chains come
// without rules: their names say what is in them.
func (t *Table) read() (*routing.Table, error) {
	exists, err := t.exists()
	if err != nil || !exists {
		return nil, err
	}
	have := routing.NewTable()
	right, err := t.readChains(have)
	if err != nil || !right {
		return nil, err
	}
	sets, err := t.conn.GetSets(t.table)
	if err != nil {
		return nil, err
	}
	for _, s := range sets {
		s.Table = t.table
		if strings.HasPrefix(s.Name, "aff-") {
			have.Affinity[s.Name] = routing.Affinity{Timeout: s.Timeout}
			continue
		}
		if s.Anonymous || strings.HasPrefix(s.Name, "__") {
			continue
		}
		if err := t.readSet(have, s); err != nil {
			return nil, err
		}
	}
	return have, nil
}

// readChains tells whether the base is ours and whole.
func (t *Table) readChains(have *routing.Table) (bool, error) {
	chains, err := t.conn.ListChainsOfTableFamily(t.family())
	if err != nil {
		return false, err
	}
	present := make(map[string]struct{})
	for _, c := range chains {
		if c.Table.Name != Name {
			continue
		}
		present[c.Name] = struct{}{}
		switch prefix, _, _ := strings.Cut(c.Name, "-"); prefix {
		case "svc", "ext", "lb", "host":
			have.Chains[c.Name] = nil
		}
	}
	for _, c := range t.base() {
		if _, ok := present[c.name]; !ok {
			return false, nil
		}
		rules, err := t.conn.GetRules(t.table, &nftables.Chain{Table: t.table, Name: c.name})
		if err != nil || len(rules) != len(c.rules) {
			return false, err
		}
	}
	return true, nil
}

func (t *Table) readSet(have *routing.Table, s *nftables.Set) error {
	elements, err := t.conn.GetSetElements(s)
	if err != nil {
		return err
	}
	for _, e := range elements {
		chain := verdictChain(e.Val)
		fate := routing.Drop
		if chain == rejectChain {
			fate = routing.Reject
		}
		address, isAddress := parseAddress(e.Key)
		port, isPort := parsePort(e.Key)
		switch {
		case s.Name == t.sets.services.Name && isAddress:
			have.Services[address] = chain
		case s.Name == t.sets.nobody.Name && isAddress:
			have.Nobody[address] = fate
		case s.Name == t.sets.nodePorts.Name && isPort:
			have.NodePorts[port] = chain
		case s.Name == t.sets.nobodyAtPort.Name && isPort:
			have.NobodyAtPort[port] = fate
		case s.Name == t.sets.members.Name:
			if a, ok := netip.AddrFromSlice(e.Key); ok {
				have.Members[a] = struct{}{}
			}
		case s.Name == t.sets.hairpin.Name:
			if b, ok := parseBackend(append(e.Key[:len(e.Key)/2:len(e.Key)/2], 0, 0), t.cfg.V4); ok {
				have.Hairpin[b.Addr()] = struct{}{}
			}
		}
	}
	return nil
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
