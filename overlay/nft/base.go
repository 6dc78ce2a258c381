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
	t.addChain(t.fingerprint(), nil)
	t.addChain(rejectChain, [][]expr.Any{{t.reject()}})
	t.addChain(outsideChain, t.unless(t.from, t.setMark(true)))
	t.addChain(egressChain, t.unless(t.to, []expr.Any{&expr.Masq{FullyRandom: true}}))
	t.addChain(servicesChain, t.serviceRules())
	t.addChain(nobodyChain, [][]expr.Any{t.byAddress(t.sets.nobody), byPort(t.sets.nobodyAtPort)})

	jump := [][]expr.Any{{verdict(expr.VerdictJump, servicesChain)}}
	t.addHook("nat-prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, jump)
	t.addHook("nat-output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest, jump)
	t.addHook("nat-postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, t.masqueradeRules())
	check := append(newConnection(), verdict(expr.VerdictJump, nobodyChain))
	t.addHook("filter-forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter, [][]expr.Any{check})
	t.addHook("filter-output", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter, [][]expr.Any{check})
	t.addHook("filter-input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter,
		append([][]expr.Any{check}, t.loopbackGuard()...))
	return t.conn.Flush()
}

func (t *Table) addHook(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority, rules [][]expr.Any) {
	accept := nftables.ChainPolicyAccept
	c := t.conn.AddChain(&nftables.Chain{Table: t.table, Name: name, Type: kind, Hooknum: hook, Priority: priority, Policy: &accept})
	t.addRules(c, rules)
}

func (t *Table) addChain(name string, rules [][]expr.Any) {
	t.addRules(t.conn.AddChain(&nftables.Chain{Table: t.table, Name: name}), rules)
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

func (t *Table) reject() expr.Any {
	if t.cfg.V4 {
		return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 3} // port unreachable
	}
	return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 4}
}
