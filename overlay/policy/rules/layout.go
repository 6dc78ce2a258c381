package rules

import (
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/policy/plan"
)

// layoutVersion is the version of the base chains and sets; raise it when they change.
const layoutVersion = 2

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

// A connection that was cut stays cut until cutFor after its last packet; at most cutLimit connections are remembered.
const (
	cutFor   = 5 * time.Minute
	cutLimit = 65536
)

// layout builds the sets, chains and elements of one family's table.
type layout struct {
	family nft.Family
	bridge string
	table  *nft.Table // with no rules in the guards' chains
}

func newLayout(family nft.Family, bridge string) *layout {
	l := &layout{family: family, bridge: bridge}
	l.table = &nft.Table{Family: family, Name: Name, Sets: l.baseSets(), Chains: append(l.guards(open), l.baseChains()...)}
	return l
}

// fingerprint returns the name of the chain that marks a table as built from this configuration.
func (l *layout) fingerprint() string {
	return nft.Fingerprint(fmt.Appendf(nil, "%d %s %s", layoutVersion, l.family, l.bridge))
}

// baseSets returns the sets that every table has.
func (l *layout) baseSets() []nft.Set {
	address, join := l.family.AddressType(), nftables.MustConcatSetType
	list := []nft.Set{
		{Name: selfSet, Key: join(address, address)}, // source and destination
		{Name: knownSet, Key: address},
		// The connections that were cut: source, destination, protocol and both ports.
		{
			Name: cutSet, Flags: nft.Timeout | nft.Dynamic, Limit: cutLimit, Expires: cutFor,
			Key: join(address, address, nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeInetService),
		},
	}
	for _, name := range verdictMaps {
		list = append(list, nft.Set{Name: name, Flags: nft.Map, Key: address, Data: nftables.TypeVerdict})
	}
	return list
}

// set returns a set of the plan, without elements.
func (l *layout) set(s plan.Set) nft.Set {
	out := nft.Set{Name: s.Name, Key: l.family.AddressType()}
	switch s.Kind {
	case plan.Ports:
		out.Key = nftables.MustConcatSetType(out.Key, nftables.TypeInetProto, nftables.TypeInetService)
	case plan.Networks:
		out.Flags = nft.Interval
	}
	return out
}

// baseChains returns the chains that every table has with the same rules; the chains of guards come before them.
func (l *layout) baseChains() []nft.Chain {
	return []nft.Chain{
		{Name: l.fingerprint()},
		{Name: plan.Denied, Rules: []nft.Rule{
			{l.family.LoadSource(0), l.family.LoadDestination(l.family.AddressWords()), nft.Member(selfSet, 0), nft.Accept()},
			{nft.Drop()},
		}},
		{Name: ingressChain, Rules: []nft.Rule{
			{l.family.LoadDestination(0), nft.VerdictOf(ingressMap, 0)},
			{nft.Jump(toChain)},
			{nft.Accept()},
		}},
		{
			Name: forwardChain,
			Hook: &nft.Hook{Type: nftables.ChainTypeFilter, Number: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter},
			Rules: []nft.Rule{
				append(known(), nft.Accept()),
				l.dropCutForward(),
				l.dropCutAnswers(),
				{l.family.LoadSource(0), nft.VerdictOf(egressMap, 0)},
				{nft.Jump(fromChain)},
				{nft.Goto(ingressChain)},
			},
		},
	}
}

// known matches packets of established connections, and ICMP errors about them.
func known() []expr.Any {
	return append([]expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: nft.Word(0)}},
		nft.AnyBit(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)...)
}

// dropCutForward drops packets of connections that were cut, in the direction in which they began.
func (l *layout) dropCutForward() nft.Rule {
	second := l.family.AddressWords()
	return dropCut(l.family.LoadSource(0), l.family.LoadDestination(second), nft.LoadProtocol(2*second),
		nft.LoadSourcePort(2*second+1), nft.LoadDestinationPort(2*second+2))
}

// dropCutAnswers drops packets of connections that were cut, in the other direction.
func (l *layout) dropCutAnswers() nft.Rule {
	second := l.family.AddressWords()
	return dropCut(l.family.LoadDestination(0), l.family.LoadSource(second), nft.LoadProtocol(2*second),
		nft.LoadDestinationPort(2*second+1), nft.LoadSourcePort(2*second+2))
}

// dropCut drops packets whose connection, loaded by load, was cut. Each packet extends the entry by cutFor.
func dropCut(load ...expr.Any) nft.Rule {
	return append(load, nft.Member(cutSet, 0),
		&expr.Dynset{SrcRegKey: nft.Word(0), SetName: cutSet, Operation: uint32(unix.NFT_DYNSET_OP_UPDATE), Timeout: cutFor},
		nft.Drop())
}

// guard says whether unknown addresses on the bridge may make connections.
type guard uint8

const (
	open   guard = iota // they may
	closed              // they may not
)

// guards returns the chains for packets from and to unknown addresses on the bridge.
func (l *layout) guards(g guard) []nft.Chain {
	from, to := nft.Chain{Name: fromChain}, nft.Chain{Name: toChain}
	if g == closed {
		deny := nft.Goto(plan.Denied)
		from.Rules = []nft.Rule{append(nft.InLink(l.bridge), l.family.LoadSource(0), nft.NotMember(knownSet, 0), deny)}
		to.Rules = []nft.Rule{append(nft.OutLink(l.bridge), l.family.LoadDestination(0), nft.NotMember(knownSet, 0), deny)}
	}
	return []nft.Chain{from, to}
}
