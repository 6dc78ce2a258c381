package routing

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Rule is one step of a chain: a condition (all fields set must hold) and what happens then.
type Rule struct {
	From      []netip.Prefix // the source is in one of these
	FromLocal bool           // the source is an address of the node

	Mark    bool             // masquerade the connection later, and go on
	Goto    string           // continue in that chain
	Drop    bool             // drop the packet
	Balance []netip.AddrPort // send to one of these, at random
	// Sticky names the affinity map that is asked before Balance and told what Balance chose.
	Sticky    string
	StickyFor time.Duration
}

// String is the rule for people; it also makes chain names.
func (r Rule) String() string {
	var parts []string
	add := func(when bool, format string, args ...any) {
		if when {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(len(r.From) > 0, "from %v", r.From)
	add(r.FromLocal, "from local")
	add(r.Mark, "mark")
	add(r.Drop, "drop")
	add(r.Goto != "", "goto %s", r.Goto)
	add(r.Sticky != "", "sticky %s %s", r.Sticky, r.StickyFor)
	add(len(r.Balance) > 0, "to %v", r.Balance)
	return strings.Join(parts, " ")
}

// Address is a key of the map of services: where a packet is going.
type Address struct {
	IP       netip.Addr
	Protocol Protocol
	Port     uint16
}

// NodePort is a key of the map of ports that are open on every address of the node.
type NodePort struct {
	Protocol Protocol
	Port     uint16
}

// Fate is what happens to a packet for which there is nobody: it is rejected, or dropped where a policy forbids to send
// it elsewhere.
type Fate uint8

// Fates.
const (
	Reject Fate = iota
	Drop
)

// Table is everything the kernel has to know about services.
type Table struct {
	Chains    map[string][]Rule
	Services  map[Address]string  // the chain to go to
	NodePorts map[NodePort]string // the chain to go to
	// Nobody and NobodyAtPort are the destinations without backends.
	Nobody       map[Address]Fate
	NobodyAtPort map[NodePort]Fate
	// Hairpin are the pods of this node that may be sent to themselves.
	Hairpin map[netip.Addr]struct{}
	// Members are the other nodes, which alone may send to the tunnel's port; Build leaves it empty.
	Members map[netip.Addr]struct{}
	// Affinity are the maps of clients to backends; the values are the backends still good.
	Affinity map[string]Affinity
}

// Affinity is a map from clients to the backends they stay with.
type Affinity struct {
	Timeout  time.Duration
	Backends []netip.AddrPort
}

// NewTable returns an empty table.
func NewTable() *Table {
	return &Table{
		Chains: make(map[string][]Rule), Services: make(map[Address]string), NodePorts: make(map[NodePort]string),
		Nobody: make(map[Address]Fate), NobodyAtPort: make(map[NodePort]Fate),
		Hairpin: make(map[netip.Addr]struct{}), Members: make(map[netip.Addr]struct{}), Affinity: make(map[string]Affinity),
	}
}

// chain adds a chain and returns its name, which is a digest of its content.
func (t *Table) chain(prefix string, rules ...Rule) string {
	h := sha256.New()
	for _, r := range rules {
		fmt.Fprintln(h, r)
	}
	name := prefix + "-" + hex.EncodeToString(h.Sum(nil)[:10])
	t.Chains[name] = rules
	return name
}

// digest shortens a name that people chose to one the kernel accepts.
func digest(prefix, name string) string {
	sum := sha256.Sum256([]byte(name))
	return prefix + "-" + hex.EncodeToString(sum[:10])
}

// Build lays out the table. pods is the cluster's pod network: what comes from there is internal.
func Build(services []Service, hostPorts []HostPort, pods []netip.Prefix) *Table {
	t := NewTable()
	for i := range services {
		t.addService(&services[i], pods)
	}
	for _, h := range hostPorts {
		t.addHostPort(h)
	}
	return t
}

func (t *Table) addService(s *Service, pods []netip.Prefix) {
	for _, b := range s.Local {
		t.Hairpin[b.Addr()] = struct{}{}
	}
	everywhere, here := t.balance(s, s.Everywhere, "all"), t.balance(s, s.Here, "here")
	internal, internalBackends := everywhere, s.Everywhere
	if s.InternalLocal {
		internal, internalBackends = here, s.Here
	}
	for _, ip := range s.ClusterIPs {
		t.lead(Address{ip, s.Protocol, s.Port}, internal, fate(internalBackends, s.Everywhere))
	}
	if len(s.ExternalIPs)+len(s.LoadBalancer) == 0 && s.NodePort == 0 {
		return
	}
	external := t.external(s, everywhere, here, pods)
	lost := fate(s.Everywhere, s.Everywhere)
	if s.ExternalLocal {
		lost = fate(s.Here, s.Everywhere)
	}
	for _, ip := range s.ExternalIPs {
		t.lead(Address{ip, s.Protocol, s.Port}, external, lost)
	}
	guarded := external
	if external != "" && len(s.Sources) > 0 {
		guarded = t.chain("lb", Rule{From: s.Sources, Goto: external}, Rule{Drop: true})
	}
	for _, ip := range s.LoadBalancer {
		t.lead(Address{ip, s.Protocol, s.Port}, guarded, lost)
	}
	if s.NodePort != 0 {
		at := NodePort{s.Protocol, s.NodePort}
		if external != "" {
			t.NodePorts[at] = external
		}
		if lost != nil {
			t.NobodyAtPort[at] = *lost
		}
	}
}

// fate is nil when there are backends; else Drop if the policy hides backends elsewhere, Reject if there are none.
func fate(usable, all []netip.AddrPort) *Fate {
	if len(usable) > 0 {
		return nil
	}
	f := Reject
	if len(all) > 0 {
		f = Drop
	}
	return &f
}

func (t *Table) lead(at Address, chain string, lost *Fate) {
	if chain != "" {
		t.Services[at] = chain
	}
	if lost != nil {
		t.Nobody[at] = *lost
	}
}

// balance makes the chain that chooses among backends; "" when there are none.
func (t *Table) balance(s *Service, backends []netip.AddrPort, which string) string {
	if len(backends) == 0 {
		return ""
	}
	r := Rule{Balance: backends}
	if s.Affinity > 0 {
		r.Sticky, r.StickyFor = digest("aff", s.Name+" "+which), s.Affinity
		t.Affinity[r.Sticky] = Affinity{Timeout: s.Affinity, Backends: backends}
	}
	return t.chain("svc", r)
}

// external makes the chain for traffic from outside. Under the policy Cluster the source is hidden, so that the answer
// comes back this way. Under Local it is kept; pods and the node itself may use backends elsewhere all the same.
func (t *Table) external(s *Service, everywhere, here string, pods []netip.Prefix) string {
	if everywhere == "" {
		return ""
	}
	if !s.ExternalLocal {
		return t.chain("ext", Rule{Mark: true}, Rule{Goto: everywhere})
	}
	var rules []Rule
	if len(pods) > 0 {
		rules = append(rules, Rule{From: pods, Goto: everywhere})
	}
	rules = append(rules, Rule{FromLocal: true, Mark: true}, Rule{FromLocal: true, Goto: everywhere})
	if here != "" {
		rules = append(rules, Rule{Goto: here})
	}
	return t.chain("ext", rules...)
}

// addHostPort leads a host port to its pod. What comes from the node itself is masqueraded, or the answer to a loopback
// source would be lost.
func (t *Table) addHostPort(h HostPort) {
	t.Hairpin[h.Backend.Addr()] = struct{}{}
	chain := t.chain("host", Rule{FromLocal: true, Mark: true}, Rule{Balance: []netip.AddrPort{h.Backend}})
	if h.Address.IsValid() {
		t.Services[Address{h.Address, h.Protocol, h.Port}] = chain
		return
	}
	t.NodePorts[NodePort{h.Protocol, h.Port}] = chain
}
