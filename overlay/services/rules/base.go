package rules

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/services"
)

const (
	servicesChain    = "services"
	outsideChain     = "outside"
	egressChain      = "egress"
	noBackendsChain  = "no-backends"
	rejectChain      = "reject"
	nonMembersChain  = "non-members"
	outsidePodsChain = "outside-pods"
)

// baseChains returns the chains that do not depend on services. The kernel asks those of type nat for the first packet of a
// connection only, so everything that can wait for that is there; each of the others costs something for every packet, and
// is there only if it has rules.
func (l *layout) baseChains() []nft.Chain {
	lead := []nft.Rule{{nft.Jump(servicesChain)}, {nft.Jump(noBackendsChain)}}
	early, late := l.earlyAndLate()
	list := []nft.Chain{
		{Name: rejectChain, Rules: []nft.Rule{{l.reject()}}},
		{Name: outsideChain, Rules: l.unless(l.family.From, l.setMark())},
		{Name: egressChain, Rules: l.unless(l.family.To, []expr.Any{&expr.Masq{FullyRandom: true}})},
		{Name: apartChain(services.AtAddress), Rules: l.apart(services.AtAddressOutside)},
		{Name: apartChain(services.AtPort), Rules: l.apart(services.AtPortOutside)},
		{Name: servicesChain, Rules: []nft.Rule{
			append(l.loadDestination(), nft.VerdictOf(guardsMap, 0)),
			l.follow(services.AtAddress),
			append(toThisHost(), l.follow(services.AtPort)...),
		}},
		{Name: noBackendsChain, Rules: l.withoutBackends()},
		{Name: nonMembersChain, Rules: l.nonMembers()},
		{Name: outsidePodsChain, Rules: l.outsidePods()},
		{Name: "raw-prerouting", Rules: early, Hook: filterHook(nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)},
		{Name: "raw-output", Rules: l.toMembers(), Hook: filterHook(nftables.ChainHookOutput, nftables.ChainPriorityRaw)},
		{Name: "nat-prerouting", Rules: lead, Hook: natHook(nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)},
		{Name: "nat-output", Rules: lead, Hook: natHook(nftables.ChainHookOutput, nftables.ChainPriorityNATDest)},
		{Name: "nat-input", Rules: l.redirectedToTunnel(), Hook: natHook(nftables.ChainHookInput, nftables.ChainPriorityNATSource)},
		{Name: "nat-postrouting", Rules: append(l.redirectedToOtherTunnels(), l.masqueradeRules()...),
			Hook: natHook(nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)},
		{Name: "filter-input", Rules: late, Hook: filterHook(nftables.ChainHookInput, nftables.ChainPriorityFilter)},
	}
	used := slices.DeleteFunc(list, func(c nft.Chain) bool { return len(c.Rules) == 0 })
	return append([]nft.Chain{{Name: l.fingerprint()}}, used...)
}

func filterHook(number *nftables.ChainHook, priority *nftables.ChainPriority) *nft.Hook {
	return &nft.Hook{Type: nftables.ChainTypeFilter, Number: number, Priority: priority}
}

func natHook(number *nftables.ChainHook, priority *nftables.ChainPriority) *nft.Hook {
	return &nft.Hook{Type: nftables.ChainTypeNAT, Number: number, Priority: priority}
}

// unless returns rules that return for packets for which in matches a pod network, and apply then to all other packets.
func (l *layout) unless(in func(p netip.Prefix) []expr.Any, then []expr.Any) []nft.Rule {
	var rules []nft.Rule
	for _, p := range l.cfg.Pods {
		rules = append(rules, append(in(p), nft.Return()))
	}
	return append(rules, then)
}

// withoutBackends rejects or drops packets to services without backends.
func (l *layout) withoutBackends() []nft.Rule {
	refuse, drop := nft.Goto(rejectChain), nft.Drop()
	address := func(set string, then expr.Any) nft.Rule {
		return append(l.loadDestination(), nft.Member(set, 0), then)
	}
	port := func(set string, then expr.Any) nft.Rule {
		return slices.Concat(toThisHost(), l.loadPort(), []expr.Any{nft.Member(set, l.pairWord()), then})
	}
	return []nft.Rule{
		address(refusedSet, refuse), address(droppedSet, drop), port(refusedPortsSet, refuse), port(droppedPortsSet, drop),
	}
}

// masqueradeRules masquerade packets with the mark, packets that a Service sends back to their own pod, and packets of this
// node's pods that leave the pod networks.
func (l *layout) masqueradeRules() []nft.Rule {
	rules := []nft.Rule{
		slices.Concat(l.marked(), l.clearMark(), []expr.Any{&expr.Masq{FullyRandom: true}}),
		slices.Concat(redirected(), []expr.Any{
			l.family.LoadSource(0), l.family.LoadDestination(l.family.AddressWords()), nft.Member(hairpinSet, 0), &expr.Masq{FullyRandom: true},
		}),
	}
	for _, p := range l.cfg.NodePods {
		rules = append(rules, slices.Concat(l.family.From(p), nft.NotOutLink(l.cfg.Bridge),
			[]expr.Any{nft.Jump(egressChain)}))
	}
	return rules
}

// earlyAndLate returns the rules for every packet: before connections are looked up, and when it is delivered to this node.
//
// The tunnel's own packets are not tracked: no rule translates them or looks at the state of their connection, and the
// packets that they carry pass the rules when they are unpacked. Their rule comes first and does not jump, which costs less.
//
// The rule that keeps pods from the node's loopback is where the fewest packets pass. Without a tunnel that is input, because
// packets between pods are never delivered to the node. With a tunnel all packets pass raw-prerouting already.
func (l *layout) earlyAndLate() (early, late []nft.Rule) {
	if l.cfg.Tunnel == 0 {
		return nil, l.loopbackGuard(notRedirected()) // answers have the client's address again
	}
	members := [][]expr.Any{{l.family.LoadSource(0), nft.Member(membersSet, 0)}}
	if l.cfg.VXLAN {
		members = [][]expr.Any{l.sentByMember(nft.IPv4), l.sentByMember(nft.IPv6)}
	}
	for _, fromMember := range members {
		early = append(early, slices.Concat(l.toPort(l.cfg.Tunnel), nft.NotInLink(l.cfg.Bridge), fromMember, []expr.Any{&expr.Notrack{}, nft.Accept()}))
	}
	early = append(early, append(l.toPort(l.cfg.Tunnel), nft.Jump(nonMembersChain)))
	return append(early, l.loopbackGuard(nil)...), nil
}

// Offsets of fields of the packet inside a VXLAN packet, in bytes from the outer UDP header (RFC 7348, 5): 8 bytes of UDP,
// 8 of VXLAN and 14 of Ethernet come first.
const (
	innerEtherType = 8 + 8 + 12
	innerPacket    = 8 + 8 + 14
)

// sentByMember matches VXLAN packets that carry a packet of the inner family, whose source is one that the sender may have.
// So a node cannot send packets in the name of other nodes' pods. Everything that is neither IPv4 nor IPv6 inside is
// refused: the tunnel's neighbours are written and never asked for.
func (l *layout) sentByMember(inner nft.Family) []expr.Any {
	set, kind, offset := sources4Set, uint16(unix.ETH_P_IP), uint32(innerPacket+12)
	if inner == nft.IPv6 {
		set, kind, offset = sources6Set, unix.ETH_P_IPV6, innerPacket+8
	}
	words := l.family.AddressWords()
	return []expr.Any{
		&expr.Payload{DestRegister: nft.Word(0), Base: expr.PayloadBaseTransportHeader, Offset: innerEtherType, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: nft.Word(0), Data: binaryutil.BigEndian.PutUint16(kind)},
		l.family.LoadSource(0),
		&expr.Payload{DestRegister: nft.Word(words), Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: inner.AddressType().Bytes},
		nft.Member(set, 0),
	}
}

// loopbackGuard drops packets of pods to the node's loopback, which route_localnet on the bridge would let through. Answers
// of connections that a Service redirected from the loopback to a pod pass: in raw-prerouting they still have the node's
// address on the bridge, and in input only narrows the rule to connections that no Service led.
func (l *layout) loopbackGuard(only []expr.Any) []nft.Rule {
	if l.family != nft.IPv4 {
		return nil
	}
	return []nft.Rule{slices.Concat(l.family.To(loopback4), nft.InLink(l.cfg.Bridge), only,
		[]expr.Any{nft.Drop()})}
}

// nonMembers drops packets to the tunnel's port whose sender is no member, or whose inner source is not a network of the
// sender. Otherwise a pod could forge tunnel packets of its node: to this node, and to other nodes, where its masqueraded
// packets seem to come from this node.
func (l *layout) nonMembers() []nft.Rule {
	if l.cfg.Tunnel == 0 {
		return nil
	}
	drop := nft.Drop()
	return []nft.Rule{
		slices.Concat(nft.InLink(l.cfg.Bridge), []expr.Any{l.family.LoadDestination(0), nft.Member(membersSet, 0), drop}),
		append(toNoOtherHost(), drop),
	}
}

// toMembers disables connection tracking for the packets that this node sends through the tunnel.
func (l *layout) toMembers() []nft.Rule {
	if l.cfg.Tunnel == 0 {
		return nil
	}
	return []nft.Rule{slices.Concat(l.toPort(l.cfg.Tunnel),
		[]expr.Any{l.family.LoadDestination(0), nft.Member(membersSet, 0), &expr.Notrack{}})}
}

// redirectedToTunnel drops packets that a Service redirected to the tunnel's port of this node: they were sent to another
// port, so nonMembers did not see them.
func (l *layout) redirectedToTunnel() []nft.Rule {
	if l.cfg.Tunnel == 0 {
		return nil
	}
	return []nft.Rule{append(l.toPort(l.cfg.Tunnel), nft.Drop())}
}

// redirectedToOtherTunnels drops packets of pods that a Service redirected to the tunnel's port of another host. The host
// is not looked up among the members: it may become one later, and chains of type nat see a connection's first packet only.
func (l *layout) redirectedToOtherTunnels() []nft.Rule {
	if l.cfg.Tunnel == 0 {
		return nil
	}
	return []nft.Rule{slices.Concat(redirected(), l.toPort(l.cfg.Tunnel), nft.InLink(l.cfg.Bridge),
		[]expr.Any{nft.Jump(outsidePodsChain)})}
}

// outsidePods drops packets whose destination is outside the pod networks.
func (l *layout) outsidePods() []nft.Rule {
	if l.cfg.Tunnel == 0 {
		return nil
	}
	return l.unless(l.family.To, []expr.Any{nft.Drop()})
}

func (l *layout) reject() expr.Any {
	if l.family == nft.IPv4 {
		return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 3} // port unreachable
	}
	return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 4}
}
