package nft

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	servicesChain = "services"
	outsideChain  = "outside"
	egressChain   = "egress"
	nobodyChain   = "nobody"
	rejectChain   = "reject"
)

// makeBase replaces the table by one with the base chains and empty maps, in one transaction.
func (t *Table) makeBase() error {
	t.conn.AddTable(t.table) // so that there is one to delete
	t.conn.DelTable(t.table)
	t.conn.AddTable(t.table)
	for _, s := range t.sets.all() {
		s.ID = 0
		if err := t.conn.AddSet(s, nil); err != nil {
			return err
		}
	}
	for _, c := range t.base() {
		chain := &nftables.Chain{Table: t.table, Name: c.name, Type: c.kind, Hooknum: c.hook, Priority: c.priority}
		if c.hook != nil {
			accept := nftables.ChainPolicyAccept
			chain.Policy = &accept
		}
		t.addRules(t.conn.AddChain(chain), c.rules)
	}
	return t.conn.Flush()
}

// baseChain is a chain that is always there.
type baseChain struct {
	name     string
	rules    [][]expr.Any
	kind     nftables.ChainType
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
}

// base are the chains that do not depend on services; none comes before one it leads to.
func (t *Table) base() []baseChain {
	nat, filter := nftables.ChainTypeNAT, nftables.ChainTypeFilter
	jump := [][]expr.Any{{verdict(expr.VerdictJump, servicesChain)}}
	check := [][]expr.Any{append(newConnection(), verdict(expr.VerdictJump, nobodyChain))}
	return []baseChain{
		{name: t.fingerprint()},
		{name: rejectChain, rules: [][]expr.Any{{t.reject()}}},
		{name: outsideChain, rules: t.unless(t.from, t.setMark(true))},
		{name: egressChain, rules: t.unless(t.to, []expr.Any{&expr.Masq{FullyRandom: true}})},
		{name: servicesChain, rules: t.serviceRules()},
		{name: nobodyChain, rules: [][]expr.Any{t.byAddress(t.sets.nobody), byPort(t.sets.nobodyAtPort)}},
		{"nat-prerouting", jump, nat, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest},
		{"nat-output", jump, nat, nftables.ChainHookOutput, nftables.ChainPriorityNATDest},
		{"nat-postrouting", t.masqueradeRules(), nat, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource},
		{"filter-forward", append(slices.Clone(check), t.tunnelGuard()...), filter, nftables.ChainHookForward, nftables.ChainPriorityFilter},
		{"filter-output", check, filter, nftables.ChainHookOutput, nftables.ChainPriorityFilter},
		{"filter-input", slices.Concat(check, t.loopbackGuard(), t.tunnelDoor()), filter, nftables.ChainHookInput, nftables.ChainPriorityFilter},
	}
}

func (t *Table) addRules(c *nftables.Chain, rules [][]expr.Any) {
	for _, exprs := range rules {
		t.conn.AddRule(&nftables.Rule{Table: t.table, Chain: c, Exprs: exprs})
	}
}

// unless returns for addresses (matched by in) of the pod network, and does something for all others.
func (t *Table) unless(in func(p netip.Prefix) []expr.Any, then []expr.Any) [][]expr.Any {
	var rules [][]expr.Any
	for _, p := range t.cfg.Pods {
		rules = append(rules, append(in(p), verdict(expr.VerdictReturn, "")))
	}
	return append(rules, then)
}

// serviceRules: what comes to a service address from outside the pod network will be masqueraded, as the backend's
// answer must come back this way.
func (t *Table) serviceRules() [][]expr.Any {
	var rules [][]expr.Any
	for _, p := range t.cfg.Services {
		rules = append(rules, append(t.to(p), verdict(expr.VerdictJump, outsideChain)))
	}
	return append(rules, t.byAddress(t.sets.services), byPort(t.sets.nodePorts))
}

func (t *Table) masqueradeRules() [][]expr.Any {
	rules := [][]expr.Any{
		slices.Concat(t.marked(), t.setMark(false), []expr.Any{&expr.Masq{FullyRandom: true}}),
		slices.Concat(redirected(true), []expr.Any{
			t.loadSource(regMain), t.loadDestination(t.portWord()),
			&expr.Lookup{SourceRegister: regMain, SetName: t.sets.hairpin.Name, SetID: t.sets.hairpin.ID},
			&expr.Masq{FullyRandom: true},
		}),
	}
	for _, p := range t.cfg.NodePods {
		rules = append(rules, slices.Concat(t.from(p), link(expr.MetaKeyOIFNAME, t.cfg.Bridge, false),
			[]expr.Any{verdict(expr.VerdictJump, egressChain)}))
	}
	return rules
}

// loopbackGuard keeps pods from the node's loopback, which route_localnet on the bridge would open to them: only answers
// of connections that were led from there to a pod may come back.
func (t *Table) loopbackGuard() [][]expr.Any {
	if !t.cfg.V4 {
		return nil
	}
	return [][]expr.Any{slices.Concat(link(expr.MetaKeyIIFNAME, t.cfg.Bridge, true), t.to(loopback4), redirected(false),
		[]expr.Any{verdict(expr.VerdictDrop, "")})}
}

// tunnelDoor keeps everybody but the other nodes from the tunnel's port. Pods could send in their name.
func (t *Table) tunnelDoor() [][]expr.Any {
	if t.cfg.Tunnel == 0 {
		return nil
	}
	drop := []expr.Any{verdict(expr.VerdictDrop, "")}
	return [][]expr.Any{
		slices.Concat(toPort(unix.IPPROTO_UDP, t.cfg.Tunnel), link(expr.MetaKeyIIFNAME, t.cfg.Bridge, true), drop),
		slices.Concat(toPort(unix.IPPROTO_UDP, t.cfg.Tunnel), among(t.loadSource(regMain), t.sets.members, false), drop),
	}
}

// tunnelGuard keeps pods from the tunnel's port on other nodes, where they would be taken for this node once their
// address is hidden behind its own.
func (t *Table) tunnelGuard() [][]expr.Any {
	if t.cfg.Tunnel == 0 {
		return nil
	}
	return [][]expr.Any{slices.Concat(toPort(unix.IPPROTO_UDP, t.cfg.Tunnel), link(expr.MetaKeyIIFNAME, t.cfg.Bridge, true),
		among(t.loadDestination(regMain), t.sets.members, true), []expr.Any{verdict(expr.VerdictDrop, "")})}
}

func (t *Table) reject() expr.Any {
	if t.cfg.V4 {
		return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 3} // port unreachable
	}
	return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 4}
}
