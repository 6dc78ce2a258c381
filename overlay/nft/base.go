package nft

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/services"
)

const (
	servicesChain  = "services"
	outsideChain   = "outside"
	egressChain    = "egress"
	nobodyChain    = "nobody"
	rejectChain    = "reject"
	strangersChain = "strangers"
	astrayChain    = "astray"
)

// makeTable adds messages that replace the table by one with empty sets and the base chains without rules.
func (t *Table) makeTable(w *wire) {
	for _, kind := range []uint16{unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_NEWTABLE} { // one to delete
		w.message(kind, unix.NLM_F_CREATE*b2u(kind == unix.NFT_MSG_NEWTABLE))
		w.text(unix.NFTA_TABLE_NAME, Name)
	}
	for i := range t.sets {
		t.sets[i].make(w, uint32(i+1))
	}
	base := t.base()
	for i := range base {
		base[i].make(w)
	}
}

func b2u(b bool) uint16 {
	if b {
		return 1
	}
	return 0
}

// make adds a message that makes the chain, or does nothing if it is there.
func (c *baseChain) make(w *wire) {
	w.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE)
	w.text(unix.NFTA_CHAIN_TABLE, Name)
	w.text(unix.NFTA_CHAIN_NAME, c.name)
	if c.kind == "" {
		return
	}
	at := w.nest(unix.NFTA_CHAIN_HOOK)
	w.u32(unix.NFTA_HOOK_HOOKNUM, uint32(*c.hook))
	w.u32(unix.NFTA_HOOK_PRIORITY, uint32(*c.priority))
	w.unnest(at)
	w.u32(unix.NFTA_CHAIN_POLICY, uint32(nftables.ChainPolicyAccept))
	w.text(unix.NFTA_CHAIN_TYPE, string(c.kind))
}

// baseChain is a chain that does not depend on services.
type baseChain struct {
	name     string
	rules    [][]expr.Any
	kind     nftables.ChainType
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
}

// base are the chains that do not depend on services; none comes before one it leads to. The kernel asks those of type nat
// for the first packet of a connection only, so whatever can wait for that is there; each of the others costs something for
// every packet, and is there only if it has rules.
func (t *Table) base() []baseChain {
	nat, filter := nftables.ChainTypeNAT, nftables.ChainTypeFilter
	lead := [][]expr.Any{{verdict(expr.VerdictJump, servicesChain)}, {verdict(expr.VerdictJump, nobodyChain)}}
	early, late := t.earlyAndLate()
	list := []baseChain{
		{name: rejectChain, rules: [][]expr.Any{{t.reject()}}},
		{name: outsideChain, rules: t.unless(t.from, t.setMark(true))},
		{name: egressChain, rules: t.unless(t.to, []expr.Any{&expr.Masq{FullyRandom: true}})},
		{name: apartChain(services.AtAddress), rules: t.apart(services.AtAddressOutside)},
		{name: apartChain(services.AtPort), rules: t.apart(services.AtPortOutside)},
		{name: servicesChain, rules: [][]expr.Any{
			append(t.destination(false), verdictOf(guardsMap, 0)),
			t.follow(services.AtAddress),
			append(local(false), t.follow(services.AtPort)...),
		}},
		{name: nobodyChain, rules: t.nobody()},
		{name: strangersChain, rules: t.strangers()},
		{name: astrayChain, rules: t.astray()},
		{"raw-prerouting", early, filter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw},
		{"raw-output", t.toMembers(), filter, nftables.ChainHookOutput, nftables.ChainPriorityRaw},
		{"nat-prerouting", lead, nat, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest},
		{"nat-output", lead, nat, nftables.ChainHookOutput, nftables.ChainPriorityNATDest},
		{"nat-input", t.tunnelDoor(), nat, nftables.ChainHookInput, nftables.ChainPriorityNATSource},
		{"nat-postrouting", append(t.tunnelGuard(), t.masqueradeRules()...), nat, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource},
		{"filter-input", late, filter, nftables.ChainHookInput, nftables.ChainPriorityFilter},
	}
	used := slices.DeleteFunc(list, func(c baseChain) bool { return len(c.rules) == 0 })
	return append([]baseChain{{name: t.fingerprint()}}, used...)
}

// unless returns for addresses (matched by in) of the pod network, and does something for all others.
func (t *Table) unless(in func(p netip.Prefix) []expr.Any, then []expr.Any) [][]expr.Any {
	var rules [][]expr.Any
	for _, p := range t.cfg.Pods {
		rules = append(rules, append(in(p), verdict(expr.VerdictReturn, "")))
	}
	return append(rules, then)
}

// nobody turns away what is for services without backends.
func (t *Table) nobody() [][]expr.Any {
	refuse, drop := verdict(expr.VerdictGoto, rejectChain), verdict(expr.VerdictDrop, "")
	at := func(port bool, set string, then expr.Any) []expr.Any {
		if port {
			return slices.Concat(local(false), t.destination(port), []expr.Any{member(set, t.pairWord(), true), then})
		}
		return append(t.destination(port), member(set, 0, true), then)
	}
	return [][]expr.Any{
		at(false, refusedSet, refuse), at(false, droppedSet, drop), at(true, refusedPortsSet, refuse), at(true, droppedPortsSet, drop),
	}
}

func (t *Table) masqueradeRules() [][]expr.Any {
	rules := [][]expr.Any{
		slices.Concat(t.marked(), t.setMark(false), []expr.Any{&expr.Masq{FullyRandom: true}}),
		slices.Concat(redirected(true), []expr.Any{
			t.loadSource(word(0)), t.loadDestination(word(t.addressWords())), member(hairpinSet, 0, true), &expr.Masq{FullyRandom: true},
		}),
	}
	for _, p := range t.cfg.NodePods {
		rules = append(rules, slices.Concat(t.from(p), link(expr.MetaKeyOIFNAME, t.cfg.Bridge, false),
			[]expr.Any{verdict(expr.VerdictJump, egressChain)}))
	}
	return rules
}

// earlyAndLate are rules for every packet: before connections are looked up, and when it is delivered here. The tunnel's own
// packets pass without a look at connections: none of them is translated or judged by its state, and what they carry is
// looked at when it is inside; so they come first, in a rule of their own, which costs less than a jump. What keeps pods
// from the node's loopback is where the fewest packets pass: without a tunnel those between pods are never delivered here,
// and with one there is a look at all of them before.
func (t *Table) earlyAndLate() (early, late [][]expr.Any) {
	if t.cfg.Tunnel == 0 {
		return nil, t.loopbackGuard(redirected(false)) // what comes back has the client's address again
	}
	return append([][]expr.Any{
		slices.Concat(t.toPort(t.cfg.Tunnel), link(expr.MetaKeyIIFNAME, t.cfg.Bridge, false),
			[]expr.Any{t.loadSource(word(0)), member(membersSet, 0, true), &expr.Notrack{}, verdict(expr.VerdictAccept, "")}),
		append(t.toPort(t.cfg.Tunnel), verdict(expr.VerdictJump, strangersChain)),
	}, t.loopbackGuard(nil)...), nil
}

// loopbackGuard keeps pods from the node's loopback, which route_localnet on the bridge would open to them: only answers of
// connections that were led from there to a pod may come back. On their way they have the node's address on the bridge.
func (t *Table) loopbackGuard(only []expr.Any) [][]expr.Any {
	if !t.cfg.V4 {
		return nil
	}
	return [][]expr.Any{slices.Concat(t.to(loopback4), link(expr.MetaKeyIIFNAME, t.cfg.Bridge, true), only,
		[]expr.Any{verdict(expr.VerdictDrop, "")})}
}

// strangers is for packets to the tunnel's port that are no member's. Nobody else may send there: pods could in the name of
// their node, here and to other nodes, where they would be taken for this one once their address is hidden behind its own.
func (t *Table) strangers() [][]expr.Any {
	if t.cfg.Tunnel == 0 {
		return nil
	}
	drop := verdict(expr.VerdictDrop, "")
	return [][]expr.Any{
		slices.Concat(link(expr.MetaKeyIIFNAME, t.cfg.Bridge, true), []expr.Any{t.loadDestination(word(0)), member(membersSet, 0, true), drop}),
		append(here(), drop),
	}
}

// toMembers has what this node sends through the tunnel pass in the same way.
func (t *Table) toMembers() [][]expr.Any {
	if t.cfg.Tunnel == 0 {
		return nil
	}
	return [][]expr.Any{slices.Concat(t.toPort(t.cfg.Tunnel),
		[]expr.Any{t.loadDestination(word(0)), member(membersSet, 0, true), &expr.Notrack{}})}
}

// tunnelDoor keeps out what a Service led to the tunnel's port here: it was sent to another port.
func (t *Table) tunnelDoor() [][]expr.Any {
	if t.cfg.Tunnel == 0 {
		return nil
	}
	return [][]expr.Any{append(t.toPort(t.cfg.Tunnel), verdict(expr.VerdictDrop, ""))}
}

// tunnelGuard keeps pods from that port elsewhere when a Service leads there. It may be that of a node that is no member
// yet, and nobody asks again for the packets that follow.
func (t *Table) tunnelGuard() [][]expr.Any {
	if t.cfg.Tunnel == 0 {
		return nil
	}
	return [][]expr.Any{slices.Concat(redirected(true), t.toPort(t.cfg.Tunnel), link(expr.MetaKeyIIFNAME, t.cfg.Bridge, true),
		[]expr.Any{verdict(expr.VerdictJump, astrayChain)})}
}

// astray drops what leaves the pod network.
func (t *Table) astray() [][]expr.Any {
	if t.cfg.Tunnel == 0 {
		return nil
	}
	return t.unless(t.to, []expr.Any{verdict(expr.VerdictDrop, "")})
}

func (t *Table) reject() expr.Any {
	if t.cfg.V4 {
		return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 3} // port unreachable
	}
	return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 4}
}
