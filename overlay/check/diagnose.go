package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Finding is one fault, with its place and, where it is known, its cause.
type Finding struct {
	// From and To are names of nodes; From has several where all of them have the same fault. To is empty for a fault of a
	// single node.
	From []string `json:"from,omitempty"`
	To   []string `json:"to,omitempty"`
	// The field What names the fault in a few words; Text explains it and says what to check.
	What string `json:"what"`
	Text string `json:"text"`
}

// String is one line for people.
func (f Finding) String() string {
	where := names(f.From)
	if len(f.To) > 1 || len(f.To) == 1 && !slices.Equal(f.From, f.To) {
		where += " → " + names(f.To)
	}
	if where == "" {
		return f.What + ": " + f.Text
	}
	return where + ": " + f.What + ": " + f.Text
}

// names joins the names of nodes, and counts those after the first few.
func names(list []string) string {
	const most = 4
	switch n := len(list); {
	case n == 0:
		return ""
	case n == 1:
		return "node " + list[0]
	case n > most:
		return fmt.Sprintf("nodes %s and %d others", strings.Join(list[:most], ", "), n-most)
	}
	return "nodes " + strings.Join(list, ", ")
}

// Diagnose returns the faults of a report; nil when there are none. It depends on the report alone.
func Diagnose(r *Report) []Finding {
	m := newMatrix(r)
	var out []Finding
	for _, f := range r.Faults {
		out = append(out, Finding{What: "the check itself", Text: f})
	}
	for _, n := range sortedNodes(r) {
		if n.Fault != "" {
			out = append(out, Finding{From: []string{n.Target.Name}, What: "not checked", Text: n.Fault})
		}
	}
	for _, p := range m.pairs() {
		for _, f := range m.diagnosePair(p) {
			f.From, f.To = []string{p.from}, []string{p.to}
			out = append(out, f)
		}
	}
	for _, n := range sortedNodes(r) {
		for _, f := range m.judgeNames(n) {
			f.From = []string{n.Target.Name}
			out = append(out, f)
		}
	}
	return fold(out)
}

func sortedNodes(r *Report) []NodeReport {
	return slices.SortedFunc(slices.Values(r.Nodes), func(x, y NodeReport) int { return cmp.Compare(x.Target.Name, y.Target.Name) })
}

// diagnosePair returns the faults between one pair of nodes, without faults that follow from another fault.
func (m *matrix) diagnosePair(p pair) []Finding {
	if r := m.bad(p, Node); r != nil {
		return []Finding{{What: "node to node", Text: fmt.Sprintf(
			"%s to %s; nothing else can work between them: look at the network between the hosts and at their firewalls", r.Error, m.nodes[p.to].Target.Address)}}
	}
	var out []Finding
	add := func(what, format string, args ...any) {
		out = append(out, Finding{What: what, Text: fmt.Sprintf(format, args...)})
	}
	tcp, udp := m.bad(p, Pod), m.bad(p, PodUDP)
	switch {
	case tcp != nil && udp != nil:
		add("pod to pod", "%s", m.whyNoPod(p, tcp))
	case tcp != nil:
		add("pod to pod by TCP", "%s; UDP works: a firewall drops TCP between pods, or checksums of packets are corrupted on the path", tcp.Error)
	case udp != nil:
		add("pod to pod by UDP", "%s; TCP works: a firewall drops UDP between pods", udp.Error)
	}
	reached := tcp == nil || udp == nil
	if r := m.bad(p, NodePod); r != nil && reached {
		if p.from == p.to {
			add("node to its pods", "%s: look at the bridge, its address and the host's firewall (input and output of the bridge)", r.Error)
		} else {
			add("node to pod", "%s, though pods of %s reach it: the answers are not routed back to the address that the host sends from", r.Error, p.from)
		}
	}
	if r := m.bad(p, PodNode); r != nil {
		add("pod to node", "%s at %s, though the host itself reaches it: pods' packets are not masqueraded on %s, or a firewall on %s drops them",
			r.Error, m.nodes[p.to].Target.Address, p.from, p.to)
	}
	if r := m.bad(p, Service); r != nil && reached && (p.from != p.to || m.bad(p, NodePod) == nil) {
		add("pod to Service", "%s, though the pod behind it is reached: the rules for Services on %s are missing or rules of another program come first (nft list ruleset)",
			answered(r), p.from)
	}
	if r := m.bad(p, NodePort); r != nil {
		add("NodePort", "%s: a firewall drops it (the ports 30000-32767 must be open), or the rules for Services on %s are missing", answered(r), p.to)
	}
	if r := m.bad(p, MTU); r != nil && reached {
		add("packet size", "%s", m.whySmall(p, r))
	}
	return append(out, m.judgePolicy(p)...)
}

func answered(r *Result) string {
	if r.By != "" {
		return fmt.Sprintf("answered by the pod on %s instead", r.By)
	}
	return r.Error
}

// whyNoPod explains why one node's pods do not reach another's.
func (m *matrix) whyNoPod(p pair, r *Result) string {
	here, there := m.host(p.from), m.host(p.to)
	if m.bad(pair{p.to, p.to}, NodePod) != nil {
		return fmt.Sprintf("%s; node %s does not reach its own pods either", r.Error, p.to)
	}
	if w := r.HostRoute; w != nil && w.Missing {
		return fmt.Sprintf("node %s has no route to the pods of %s%s, so its packets to them leave by the default route: its log says why", p.from, p.to, m.podsOf(p.to))
	}
	if m.heard(p) {
		// A broken return path is reported for the peer, unless the peer's own tries succeed.
		back := m.byPair[pair{p.to, p.from}][Pod]
		if back != nil && back.HostRoute != nil && back.HostRoute.Missing {
			return fmt.Sprintf("packets arrive and the answers do not come back; node %s has no route to the pods of %s%s", p.to, p.from, m.podsOf(p.from))
		}
		if back != nil && back.HostRoute != nil {
			return fmt.Sprintf("packets arrive and the answers do not come back; %s", lost(back.HostRoute, there, here))
		}
		return fmt.Sprintf("packets arrive at %s and the answers do not come back", p.to)
	}
	if r.HostRoute == nil {
		return r.Error
	}
	return fmt.Sprintf("%s; %s", r.Error, lost(r.HostRoute, here, there))
}

// podsOf returns the pod network of a node in brackets, if known.
func (m *matrix) podsOf(node string) string {
	if n := m.nodes[node]; n != nil && n.Target.PodCIDR != "" {
		return " (" + n.Target.PodCIDR + ")"
	}
	return ""
}

// lost says what to look at when packets on a path disappear.
func lost(w *HostRoute, from, to string) string {
	switch {
	case w.Port > 0:
		return fmt.Sprintf("UDP %d from %s to %s seems blocked (node to node works)", w.Port, from, to)
	case w.Gateway == to:
		return fmt.Sprintf("packets with pods' addresses sent by %s straight to %s over %s disappear: the network between the hosts drops them, "+
			"as clouds do (--overlay-mode=vxlan helps), or %s does not forward (sysctl net.ipv4.ip_forward, its firewall's forward chain)", from, to, w.Link, to)
	case w.Gateway != "":
		return fmt.Sprintf("%s sends them to %s over %s, which is not %s: that route is somebody else's, or the router there does not know the way on", from, w.Gateway, w.Link, to)
	case w.Type == "tuntap":
		return fmt.Sprintf("the overlay's UDP port from %s to %s seems blocked (node to node works)", from, to)
	}
	return fmt.Sprintf("%s sends them over %s (%s), from where they disappear", from, w.Link, w.Type)
}

func (m *matrix) whySmall(p pair, r *Result) string {
	if r.Size == nil || r.Size.Passes == 0 {
		return fmt.Sprintf("%s, not even to small datagrams that must not be split", r.Error)
	}
	text := fmt.Sprintf("packets of more than %d bytes disappear; pods send up to %d", r.Size.Passes, r.Size.Link)
	if way := m.byPair[p][Pod]; way != nil && way.HostRoute != nil && way.HostRoute.Port > 0 {
		return fmt.Sprintf("%s: the network between %s and %s must carry %d (the tunnel adds 50), or the MTU of the hosts' links must say what it does carry",
			text, m.host(p.from), m.host(p.to), r.Size.Link+50)
	}
	return fmt.Sprintf("%s: the network between %s and %s carries less than the MTU of the hosts' links says, and ICMP that would tell is dropped",
		text, m.host(p.from), m.host(p.to))
}

func (m *matrix) judgePolicy(p pair) []Finding {
	if r := m.bad(p, Admitted); r != nil {
		return []Finding{{What: "NetworkPolicy", Text: fmt.Sprintf("%s to a pod that no policy closes yet, so that nothing can be said about policies", r.Error)}}
	}
	if m.bad(p, Denied) != nil {
		return []Finding{{What: "NetworkPolicy", Text: fmt.Sprintf("a pod that a NetworkPolicy closes is reached: policies are not enforced on %s", p.to)}}
	}
	return nil
}

// judgeNames explains faults of DNS on a node.
func (m *matrix) judgeNames(n NodeReport) []Finding {
	at := pair{n.Target.Name, ""}
	if r := m.bad(at, DNS); r != nil {
		if r.Error == errSilence.Error() || strings.HasPrefix(r.Error, "connection") {
			return []Finding{{What: "DNS", Text: fmt.Sprintf("%s: no server answers at the cluster's DNS address on this node, so its pods resolve no names: its log says why "+
				"(\"names are not answered\")", r.Error)}}
		}
		return []Finding{{What: "DNS", Text: fmt.Sprintf("%s for a name of the cluster: this node does not know the cluster's Services; its log says why", r.Error)}}
	}
	if r := m.bad(at, Outside); r != nil {
		return []Finding{{What: "DNS, names outside the cluster", Text: fmt.Sprintf("%s: the node's resolvers (/etc/resolv.conf, or the ConfigMap kube-system/balsa-dns) do not answer; "+
			"where none is meant to, give --outside-name=\"\"", r.Error)}}
	}
	return nil
}

// fold joins findings that say the same of several nodes: all nodes' paths to one node, one node's paths to all, or paths between
// many.
func fold(list []Finding) []Finding {
	list = foldBy(list, func(f Finding) string { return f.What + "\x00" + strings.Join(f.To, " ") + "\x00" + shape(f) },
		func(into *Finding, f Finding) { into.From = append(into.From, f.From...) })
	list = foldBy(list, func(f Finding) string { return f.What + "\x00" + strings.Join(f.From, " ") + "\x00" + shape(f) },
		func(into *Finding, f Finding) { into.To = append(into.To, f.To...) })
	return foldBy(list, func(f Finding) string { return f.What + "\x00" + shape(f) }, func(into *Finding, f Finding) {
		into.From, into.To = append(into.From, f.From...), append(into.To, f.To...)
	})
}

// shape returns a text without the parts that differ from pair to pair.
func shape(f Finding) string {
	text := f.Text
	for _, n := range append(slices.Clone(f.From), f.To...) {
		text = strings.ReplaceAll(text, n, "*")
	}
	words := strings.Fields(text)
	for i, w := range words {
		if strings.ContainsAny(w, ".:") && strings.ContainsAny(w, "0123456789") {
			words[i] = "*"
		}
	}
	return strings.Join(words, " ")
}

func foldBy(list []Finding, key func(Finding) string, merge func(*Finding, Finding)) []Finding {
	groups, order := make(map[string][]Finding), make(map[string]int)
	for i, f := range list {
		k := key(f)
		if _, ok := order[k]; !ok {
			order[k] = i
		}
		groups[k] = append(groups[k], f)
	}
	var out []Finding
	for _, k := range slices.SortedFunc(maps.Keys(groups), func(x, y string) int { return cmp.Compare(order[x], order[y]) }) {
		g := groups[k]
		if len(g) < 3 { // two are clearer apart
			out = append(out, g...)
			continue
		}
		f := g[0]
		for _, more := range g[1:] {
			merge(&f, more)
		}
		slices.Sort(f.From)
		f.From, f.To = slices.Compact(f.From), slices.Compact(slices.Sorted(slices.Values(f.To)))
		f.Text = example(g[0]) + strings.TrimPrefix(f.Text, example(g[0]))
		out = append(out, f)
	}
	return out
}

// example names the nodes that a folded text speaks of.
func example(of Finding) string {
	if strings.HasPrefix(of.Text, "for example ") {
		return ""
	}
	if len(of.To) == 0 {
		return "for example on " + of.From[0] + " "
	}
	return "for example " + of.From[0] + " → " + of.To[0] + ": "
}
