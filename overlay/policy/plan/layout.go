package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Verdict is the effect of a rule on a packet that meets its conditions.
type Verdict uint8

// The verdicts.
const (
	Allow Verdict = iota // the policies of this direction allow the packet
	Deny
	Jump // continue in Rule.Chain, and return if that chain does not decide
)

// Rule is one step of a chain. All conditions that are set must hold.
type Rule struct {
	Direction Direction
	// Protocol 0 is any; From 0 is any port.
	Protocol Protocol
	From, To uint16
	// Holders names a set of addresses with ports that has the destination; Peers a set that has the peer's address.
	Holders, Peers string

	Verdict Verdict
	Chain   string // of Jump
}

// Denied is the chain of pods that may have no connections in a direction. It is always there.
const Denied = "denied"

// layout is everything that the kernel should hold, except for the members of groups.
type layout struct {
	chains   map[string][]Rule
	verdicts [directions]map[netip.Addr]string // the chain of a pod's address; no entry: no policy isolates the pod
	self     map[netip.Addr]struct{}           // pods with a verdict
	groups   map[string]group
	ranges   map[string][]Range
}

func newLayout() *layout {
	l := &layout{
		chains: map[string][]Rule{}, self: map[netip.Addr]struct{}{}, groups: map[string]group{}, ranges: map[string][]Range{},
	}
	for d := range l.verdicts {
		l.verdicts[d] = map[netip.Addr]string{}
	}
	return l
}

// isolatingPolicies returns the policies of a direction that select a pod.
func isolatingPolicies(p *Pod, policies map[string]*Policy, d Direction) []*Policy {
	var list []*Policy
	for _, policy := range policies {
		if policy.applies[d] && policy.selects.Matches(labels.Set(p.Labels)) {
			list = append(list, policy)
		}
	}
	return list
}

// buildLayout returns the chains for the pods of this node. owns reports whether an address belongs to the pod.
func buildLayout(pods map[PodKey]*Pod, policies map[string]map[string]*Policy, owns func(*Pod, netip.Addr) bool) *layout {
	l := newLayout()
	laid := [directions]map[*Policy]string{{}, {}}
	for _, p := range pods {
		for d := range directions {
			applied := isolatingPolicies(p, policies[p.Namespace], d)
			if len(applied) == 0 {
				continue
			}
			chain := l.addPod(applied, d, laid[d])
			for _, a := range p.Addresses {
				if owns(p, a) {
					l.verdicts[d][a] = chain
					l.self[a] = struct{}{}
				}
			}
		}
	}
	return l
}

// addPod returns the chain of pods that these policies isolate.
func (l *layout) addPod(policies []*Policy, d Direction, laid map[*Policy]string) string {
	var parts []string
	for _, p := range policies {
		chain, ok := laid[p]
		if !ok {
			chain = l.addPolicy(p, d)
			laid[p] = chain
		}
		if chain != "" {
			parts = append(parts, chain)
		}
	}
	if len(parts) == 0 {
		return Denied
	}
	slices.Sort(parts)
	var rules []Rule
	for _, chain := range slices.Compact(parts) {
		rules = append(rules, Rule{Direction: d, Verdict: Jump, Chain: chain})
	}
	return l.addChain("pod", append(rules, Rule{Direction: d, Verdict: Deny}))
}

// addPolicy returns the chain of a policy; "" if it allows nothing.
func (l *layout) addPolicy(p *Policy, d Direction) string {
	var rules []Rule
	for i := range p.rules[d] {
		rules = append(rules, l.addRule(&p.rules[d][i], d)...)
	}
	if len(rules) == 0 {
		return ""
	}
	return l.addChain("rules", rules)
}

// addRule returns rules for every peer at every port: as few as there are peers and ports together.
func (l *layout) addRule(r *rule, d Direction) []Rule {
	peers, ports := l.peers(r, d), l.ports(r, d)
	if len(peers) == 0 || len(ports) == 0 {
		return nil
	}
	if len(peers) > 1 && len(ports) > 1 {
		peers = []Rule{{Direction: d, Verdict: Jump, Chain: l.addChain("peers", peers)}}
	}
	var rules []Rule
	for _, at := range ports {
		for _, with := range peers {
			at.Peers, at.Verdict, at.Chain = with.Peers, with.Verdict, with.Chain
			rules = append(rules, at)
		}
	}
	return rules
}

func (l *layout) peers(r *rule, d Direction) []Rule {
	if r.anyPeer {
		return []Rule{{Direction: d, Verdict: Allow}}
	}
	var list []Rule
	for _, g := range r.groups {
		list = append(list, Rule{Direction: d, Peers: l.need(g), Verdict: Allow})
	}
	if len(r.ranges) > 0 {
		name := digest("nets", fmt.Sprint(r.ranges))
		l.ranges[name] = r.ranges
		list = append(list, Rule{Direction: d, Peers: name, Verdict: Allow})
	}
	return list
}

func (l *layout) ports(r *rule, d Direction) []Rule {
	if r.anyPort {
		return []Rule{{Direction: d}}
	}
	var list []Rule
	for _, p := range r.ports {
		if p.name != "" {
			list = append(list, Rule{Direction: d, Holders: l.need(holders(p, d == Ingress))})
			continue
		}
		list = append(list, Rule{Direction: d, Protocol: p.protocol, From: p.from, To: p.to})
	}
	return list
}

func (l *layout) need(g group) string {
	name := g.set()
	l.groups[name] = g
	return name
}

// addChain adds a chain and returns its name, which is a digest of its content.
func (l *layout) addChain(kind string, rules []Rule) string {
	name := digest(kind+"-"+rules[0].Direction.String(), fmt.Sprintf("%+v", rules))
	l.chains[name] = rules
	return name
}

// LeavesFirst is an order of chain names in which a chain comes after the chains that it jumps to.
func LeavesFirst(a, b string) int {
	rank := func(name string) int {
		kind, _, _ := strings.Cut(name, "-")
		return slices.Index([]string{"peers", "rules", "pod"}, kind)
	}
	if d := rank(a) - rank(b); d != 0 {
		return d
	}
	return strings.Compare(a, b)
}
