package kernel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/policy/plan"
)

// layout is the version of the base; raise it when it changes.
const layout = 1

// Names in the tables.
const (
	forwardChain = "forward"
	ingressChain = "ingress"
	fromChain    = "unknown-from"
	toChain      = "unknown-to"
	ingressMap   = "ingress"
	egressMap    = "egress"
	selfSet      = "self"
	knownSet     = "known"
	cutSet       = "cut"
)

var verdictMaps = [...]string{plan.Ingress: ingressMap, plan.Egress: egressMap}

// Connections that were cut stay so for cutFor after their last packet; at most cutLimit are remembered.
const (
	cutFor   = 5 * time.Minute
	cutLimit = 65536
)

// table is the one of a family.
type table struct {
	*nftables.Table
	v6     bool
	bridge string
}

func newTable(v6 bool, bridge string) *table {
	family := nftables.TableFamilyIPv4
	if v6 {
		family = nftables.TableFamilyIPv6
	}
	return &table{&nftables.Table{Name: Name, Family: family}, v6, bridge}
}

// fingerprint names the chain that marks a table as made from this configuration.
func (t *table) fingerprint() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %t %s", layout, t.v6, t.bridge))
	return "base-" + hex.EncodeToString(sum[:8])
}

// baseSets are always there.
func (t *table) baseSets() []*nftables.Set {
	list := []*nftables.Set{t.set(selfSet, plan.Addresses), t.set(knownSet, plan.Addresses), t.cut()}
	for _, name := range verdictMaps {
		m := t.set(name, plan.Addresses)
		m.IsMap, m.DataType = true, nftables.TypeVerdict
		list = append(list, m)
	}
	return list
}

func (t *table) set(name string, kind plan.Kind) *nftables.Set {
	address := addressType(t.v6)
	s := &nftables.Set{Table: t.Table, Name: name, KeyType: address, KeyByteOrder: binaryutil.BigEndian}
	switch kind {
	case plan.Ports:
		s.Concatenation, s.KeyType = true, nftables.MustConcatSetType(address, nftables.TypeInetProto, nftables.TypeInetService)
	case plan.Networks:
		s.Interval = true
	}
	if name == selfSet { // source and destination
		s.Concatenation, s.KeyType = true, nftables.MustConcatSetType(address, address)
	}
	return s
}

// cut holds connections that may not go on: source, destination, protocol and both ports.
func (t *table) cut() *nftables.Set {
	address := addressType(t.v6)
	return &nftables.Set{
		Table: t.Table, Name: cutSet, Concatenation: true, Dynamic: true, HasTimeout: true, Timeout: cutFor, Size: cutLimit,
		KeyType: nftables.MustConcatSetType(address, address, nftables.TypeInetProto, nftables.TypeInetService,
			nftables.TypeInetService),
		KeyByteOrder: binaryutil.BigEndian,
	}
}

// baseChain is a chain that is always there.
type baseChain struct {
	name  string
	rules [][]expr.Any
}

// base are the chains that are always there; none comes before one that it leads to. forward is hooked.
func (t *table) base() []baseChain {
	drop, accept := verdict(expr.VerdictDrop, ""), verdict(expr.VerdictAccept, "")
	second := firstWord + t.words()
	ports := second + t.words()
	// cut ends packets of connections that were cut, in the direction they began in, or in the other. Each makes it longer
	// until the connection is forgotten.
	cut := func(began bool) []expr.Any {
		return []expr.Any{
			t.load(began, firstWord), t.load(!began, second), loadProtocol(ports), loadPort(began, ports+1), loadPort(!began, ports+2),
			among(cutSet, true),
			&expr.Dynset{SrcRegKey: firstWord, SetName: cutSet, Operation: uint32(unix.NFT_DYNSET_OP_UPDATE), Timeout: cutFor},
			drop,
		}
	}
	return []baseChain{
		{t.fingerprint(), nil},
		{plan.Denied, [][]expr.Any{
			{t.load(true, firstWord), t.load(false, second), among(selfSet, true), accept},
			{drop},
		}},
		{fromChain, nil},
		{toChain, nil},
		{ingressChain, [][]expr.Any{
			{t.load(false, firstWord), judge(ingressMap)},
			{verdict(expr.VerdictJump, toChain)},
			{accept},
		}},
		{forwardChain, [][]expr.Any{
			append(known(), accept),
			cut(true),
			cut(false),
			{t.load(true, firstWord), judge(egressMap)},
			{verdict(expr.VerdictJump, fromChain)},
			{verdict(expr.VerdictGoto, ingressChain)},
		}},
	}
}

// guard are the rules for addresses on the bridge that are not known.
func (t *table) guard() map[string][]expr.Any {
	deny := verdict(expr.VerdictGoto, plan.Denied)
	return map[string][]expr.Any{
		fromChain: append(link(expr.MetaKeyIIFNAME, t.bridge), t.load(true, firstWord), among(knownSet, false), deny),
		toChain:   append(link(expr.MetaKeyOIFNAME, t.bridge), t.load(false, firstWord), among(knownSet, false), deny),
	}
}

// addBase adds messages that make the table anew.
func (t *table) addBase(conn *nftables.Conn) error {
	conn.AddTable(t.Table) // so that there is one to delete
	conn.DelTable(t.Table)
	conn.AddTable(t.Table)
	for _, s := range t.baseSets() {
		if err := conn.AddSet(s, nil); err != nil {
			return err
		}
	}
	for _, c := range t.base() {
		chain := &nftables.Chain{Table: t.Table, Name: c.name}
		if c.name == forwardChain {
			accept := nftables.ChainPolicyAccept
			chain.Type, chain.Hooknum, chain.Priority = nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter
			chain.Policy = &accept
		}
		conn.AddChain(chain)
		for _, exprs := range c.rules {
			conn.AddRule(&nftables.Rule{Table: t.Table, Chain: chain, Exprs: exprs})
		}
	}
	return nil
}
