package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/balsahq/balsa/overlay/policy/policytest"
)

// model is a kernel that does what it is told, and complains where the real one would.
type model struct {
	t       testing.TB
	chains  map[string][]Rule
	sets    map[string]map[Element]struct{}
	ranges  map[string][]Range
	verdict [directions]map[netip.Addr]string
	self    map[netip.Addr]struct{}
	known   map[netip.Addr]struct{}
	guard   bool
}

func (m *model) clear() {
	m.chains, m.sets, m.ranges = map[string][]Rule{Denied: nil}, map[string]map[Element]struct{}{}, map[string][]Range{}
	m.verdict = [directions]map[netip.Addr]string{{}, {}}
	m.self, m.known, m.guard = map[netip.Addr]struct{}{}, map[netip.Addr]struct{}{}, false
}

type failer interface{ Fatalf(string, ...any) }

func (m *model) apply(t failer, c *Change) {
	if c.Rebuild {
		m.clear()
	}
	for _, s := range c.NewSets {
		if m.sets[s.Name] != nil {
			t.Fatalf("set %s is made twice", s.Name)
		}
		m.sets[s.Name], m.ranges[s.Name] = map[Element]struct{}{}, s.Ranges
		for _, e := range s.Elements {
			m.sets[s.Name][e] = struct{}{}
		}
	}
	for _, chain := range c.NewChains {
		if _, there := m.chains[chain.Name]; there {
			t.Fatalf("chain %s is made twice", chain.Name)
		}
		for _, r := range chain.Rules {
			if _, there := m.chains[r.Chain]; r.Verdict == Jump && !there {
				t.Fatalf("chain %s leads to %s, which is not there", chain.Name, r.Chain)
			}
		}
		m.chains[chain.Name] = chain.Rules
	}
	for name, list := range c.Remove {
		for _, e := range list {
			if _, there := m.sets[name][e]; !there {
				t.Fatalf("%v is not in %s", e, name)
			}
			delete(m.sets[name], e)
		}
	}
	for name, list := range c.Add {
		if m.sets[name] == nil {
			t.Fatalf("there is no set %s", name)
		}
		for _, e := range list {
			m.sets[name][e] = struct{}{}
		}
	}
	for d := range directions {
		for a := range c.RemoveVerdicts[d] {
			if m.verdict[d][a] == "" {
				t.Fatalf("%s had no verdict", a)
			}
			delete(m.verdict[d], a)
		}
		for a, chain := range c.AddVerdicts[d] {
			if _, there := m.chains[chain]; !there {
				t.Fatalf("%s is judged by %s, which is not there", a, chain)
			}
			m.verdict[d][a] = chain
		}
	}
	edit(m.self, c.AddSelf, c.RemoveSelf)
	edit(m.known, c.AddKnown, c.RemoveKnown)
	if c.Guard != nil {
		m.guard = *c.Guard
	}
	m.drop(t, c)
}

func (m *model) drop(t failer, c *Change) {
	for _, name := range c.OldChains {
		for from, rules := range m.chains {
			for _, r := range rules {
				if r.Chain == name {
					t.Fatalf("%s still leads to %s", from, name)
				}
			}
		}
		for d := range directions {
			for a, chain := range m.verdict[d] {
				if chain == name {
					t.Fatalf("%s is still judged by %s", a, name)
				}
			}
		}
		delete(m.chains, name)
	}
	for _, name := range c.OldSets {
		for from, rules := range m.chains {
			for _, r := range rules {
				if r.Peers == name || r.Holders == name {
					t.Fatalf("%s still uses %s", from, name)
				}
			}
		}
		delete(m.sets, name)
		delete(m.ranges, name)
	}
}

func edit(set map[netip.Addr]struct{}, add, remove []netip.Addr) {
	for _, a := range remove {
		delete(set, a)
	}
	for _, a := range add {
		set[a] = struct{}{}
	}
}

// allows is what the chains make of a flow.
func (m *model) allows(f Flow) bool {
	for d, judged := range [...]netip.Addr{Ingress: f.To, Egress: f.From} {
		chain, isolated := m.verdict[d][judged]
		if _, self := m.self[judged]; isolated && !(self && f.From == f.To) && m.run(chain, f) == Deny {
			return false
		}
	}
	return true
}

// run is what a chain decides; Jump, which lets pass in the end, if it does not.
func (m *model) run(chain string, f Flow) Verdict {
	if chain == Denied {
		return Deny
	}
	for _, r := range m.chains[chain] {
		peer := f.To
		if r.Direction == Ingress {
			peer = f.From
		}
		if r.Protocol != 0 && r.Protocol != f.Protocol || r.From != 0 && (f.Port < r.From || f.Port > r.To) ||
			r.Holders != "" && !m.in(r.Holders, Element{f.To, f.Protocol, f.Port}) || r.Peers != "" && !m.in(r.Peers, Element{Address: peer}) {
			continue
		}
		fate := r.Verdict
		if fate == Jump {
			fate = m.run(r.Chain, f)
		}
		if fate != Jump {
			return fate
		}
	}
	return Jump
}

func (m *model) in(set string, e Element) bool {
	_, ok := m.sets[set][e]
	return ok || slices.ContainsFunc(m.ranges[set], func(r Range) bool { return r.contains(e.Address) })
}

func newModel() *model {
	m := &model{}
	m.clear()
	return m
}

// play is a world, a State that was told of each step, and the kernel that was told of each change.
type play struct {
	*rapid.T
	policytest.Dice
	w *policytest.World
	s *State
	m *model
}

func (p *play) change() {
	c := p.s.Change()
	p.m.apply(p.T, c)
	p.s.Accept()
	if again := p.s.Change(); !again.Empty() {
		p.Fatalf("not settled: %+v", again)
	}
	p.s.Accept()
}

func (p *play) step() {
	ns := fmt.Sprint("ns", p.Dice(3))
	switch p.Dice(9) {
	case 0:
		n := p.Namespace(ns)
		p.w.Namespaces = slices.DeleteFunc(p.w.Namespaces, func(o *v1.Namespace) bool { return o.Name == ns })
		p.w.Namespaces = append(p.w.Namespaces, n)
		p.s.SetNamespace(ns, n.Labels)
	case 1:
		p.w.Namespaces = slices.DeleteFunc(p.w.Namespaces, func(o *v1.Namespace) bool { return o.Name == ns })
		p.s.DeleteNamespace(ns)
	case 2, 3, 4:
		p.setPod(p.Dice(16))
	case 5:
		p.dropPod(p.Dice(16))
	case 6, 7:
		np := p.Policy(ns, fmt.Sprint("np", p.Dice(4)))
		p.dropPolicy(ns, np.Name)
		p.w.Policies = append(p.w.Policies, np)
		p.s.SetPolicy(Compile(np))
	case 8:
		name := fmt.Sprint("np", p.Dice(4))
		p.dropPolicy(ns, name)
		p.s.DeletePolicy(ns, name)
	}
}

func (p *play) dropPolicy(ns, name string) {
	p.w.Policies = slices.DeleteFunc(p.w.Policies, func(o *networking.NetworkPolicy) bool { return o.Namespace == ns && o.Name == name })
}

func (p *play) dropPod(n int) {
	name := fmt.Sprint("pod", n)
	for _, o := range p.w.Pods {
		if o.Name == name {
			p.s.DeletePod(PodKey{o.Namespace, o.Name}, o.UID)
		}
	}
	p.w.Pods = slices.DeleteFunc(p.w.Pods, func(o *v1.Pod) bool { return o.Name == name })
}

func (p *play) setPod(n int) {
	pod := p.Pod(fmt.Sprint("ns", n%3), fmt.Sprint("pod", n), fmt.Sprintf("10.244.0.%d", n), fmt.Sprintf("fd00:244::%x", n))
	if n%4 == 0 {
		pod.Spec.NodeName = "other"
	}
	p.w.Pods = slices.DeleteFunc(p.w.Pods, func(o *v1.Pod) bool { return o.Name == pod.Name })
	p.w.Pods = append(p.w.Pods, pod)
	told, _ := PodOf(pod, policytest.Node)
	if told.Local && p.Dice(3) == 0 {
		silent := told
		silent.Addresses = nil
		p.s.SetPod(silent)
		p.s.SetAttached(told)
		return
	}
	p.s.SetPod(told)
}

var outside = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("255.255.255.255"),
	netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("fd00:1::1")}

// flows are all that make a difference.
func (p *play) flows(do func(Flow, policytest.Flow)) {
	list := slices.Clone(outside)
	for _, pod := range p.w.Pods {
		for _, ip := range pod.Status.PodIPs {
			list = append(list, netip.MustParseAddr(ip.IP))
		}
	}
	for _, from := range list {
		for _, to := range list {
			if from.Is4() != to.Is4() {
				continue
			}
			for _, at := range []struct {
				p    v1.Protocol
				port int32
			}{{v1.ProtocolTCP, 80}, {v1.ProtocolTCP, 81}, {v1.ProtocolTCP, 53}, {v1.ProtocolUDP, 53}, {v1.ProtocolUDP, 80}, {v1.ProtocolSCTP, 80}} {
				protocol, _ := protocolOf(at.p)
				do(Flow{from, to, protocol, uint16(at.port)}, policytest.Flow{From: from, To: to, Protocol: at.p, Port: at.port})
			}
		}
	}
}

func (p *play) check() {
	p.flows(func(f Flow, api policytest.Flow) {
		want := p.w.Allows(api)
		if got := p.m.allows(f); got != want {
			p.Fatalf("%+v: the chains say %t, the policies %t\n%s", f, got, want, p.w)
		}
		if got := p.s.Allows(f); got != want {
			p.Fatalf("%+v: the state says %t, the policies %t\n%s", f, got, want, p.w)
		}
	})
}

// TestChangesKeepTheMeaning: whatever happens in whatever order, the chains say what the policies mean, and are what they
// would be had everything been known at once.
func TestChangesKeepTheMeaning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &play{T: t, w: &policytest.World{}, s: NewState(), m: newModel()}
		p.Dice = policytest.Seeded(rapid.Uint64().Draw(t, "seed"))
		for n := range 16 {
			if n < 3 {
				ns := p.Namespace(fmt.Sprint("ns", n))
				p.w.Namespaces = append(p.w.Namespaces, ns)
				p.s.SetNamespace(ns.Name, ns.Labels)
			}
			p.setPod(n)
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			p.step()
			if p.Dice(3) == 0 {
				p.change()
			}
		}
		p.change()
		p.check()
		fresh := newModel()
		s := NewState()
		for _, n := range p.w.Namespaces {
			s.SetNamespace(n.Name, n.Labels)
		}
		for _, pod := range p.w.Pods {
			told, _ := PodOf(pod, policytest.Node)
			s.SetPod(told)
		}
		for _, np := range p.w.Policies {
			s.SetPolicy(Compile(np))
		}
		fresh.apply(t, s.Change())
		if a, b := fmt.Sprintf("%+v", *fresh), fmt.Sprintf("%+v", *p.m); a != b {
			t.Fatalf("step by step:\n%s\nat once:\n%s", b, a)
		}
	})
}

// TestAssumeChangesOnlyWhatDiffers: a restart over what is right says nothing; over what is wrong, it is made right.
func TestAssumeChangesOnlyWhatDiffers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &play{T: t, w: &policytest.World{}, s: NewState(), m: newModel()}
		p.Dice = policytest.Seeded(rapid.Uint64().Draw(t, "seed"))
		for range 40 {
			p.step()
		}
		p.change()
		p.s.AssumeKernel(p.m.found())
		if c := p.s.Change(); !c.Empty() {
			t.Fatalf("nothing differs, but: %+v", c)
		}
		p.s.Accept()
		old := p.m.found()
		for range 5 {
			p.step()
		}
		p.s.AssumeKernel(old)
		p.change()
		p.check()
	})
}

func (m *model) found() *Found {
	f := NewFound()
	for name := range m.chains {
		if name != Denied {
			f.Chains[name] = struct{}{}
		}
	}
	for name, elements := range m.sets {
		f.Sets[name] = maps.Clone(elements)
	}
	for d := range directions {
		f.Verdicts[d] = maps.Clone(m.verdict[d])
	}
	f.Self, f.Known, f.Guarded = maps.Clone(m.self), maps.Clone(m.known), m.guard
	return f
}

func pod(name, address string, created int64) Pod {
	p := Pod{PodKey: PodKey{"default", name}, UID: "uid", Created: created, Local: true, Labels: map[string]string{"app": name}}
	if address != "" {
		p.Addresses = []netip.Addr{netip.MustParseAddr(address)}
	}
	return p
}

func denyAll(app string) *Policy {
	np := &networking.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "deny-" + app}}
	np.Spec.PodSelector.MatchLabels = map[string]string{"app": app}
	return Compile(np)
}

func TestOneSetForOneSelector(t *testing.T) {
	s, m := NewState(), newModel()
	for i := range 20 {
		np := &networking.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("np", i)}}
		np.Spec.Ingress = []networking.NetworkPolicyIngressRule{{From: []networking.NetworkPolicyPeer{
			{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}}}}}
		s.SetPolicy(Compile(np))
	}
	s.SetPod(pod("a", "10.244.0.1", 1))
	m.apply(t, s.Change())
	s.Accept()
	if len(m.sets) != 1 || len(m.chains) != 3 { // denied, the policies', the pod's
		t.Errorf("%d sets and %d chains for 20 policies that are alike: %v %v", len(m.sets), len(m.chains), m.sets, m.chains)
	}
	other := pod("a", "10.244.9.9", 1)
	other.Name, other.UID, other.Local = "b", "other", false
	s.SetPod(other)
	c := s.Change()
	if len(c.Add) != 1 || len(c.NewChains)+len(c.NewSets)+len(c.OldChains)+len(c.AddVerdicts[Ingress]) != 0 {
		t.Errorf("a pod elsewhere is more than one element: %+v", c)
	}
}

// TestAddressOfTwoPods: a pod that is going may show its address after another got it.
func TestAddressOfTwoPods(t *testing.T) {
	s, m := NewState(), newModel()
	at := netip.MustParseAddr("10.244.0.1")
	s.SetPolicy(denyAll("new"))
	apply := func() {
		t.Helper()
		m.apply(t, s.Change())
		s.Accept()
	}
	older, newer := pod("old", "10.244.0.1", 1), pod("new", "10.244.0.1", 2)
	older.UID, newer.UID = "1", "2"
	s.SetPod(newer)
	s.SetPod(older)
	if apply(); m.verdict[Ingress][at] != Denied {
		t.Error("the older pod took the address")
	}
	s.DeletePod(newer.PodKey, "2")
	if apply(); m.verdict[Ingress][at] != "" {
		t.Error("the older pod did not get its address back")
	}
	newer.Created = 1
	s.SetAttached(newer)
	older.Labels = map[string]string{"app": "old", "x": "y"}
	s.SetPod(older)
	if apply(); m.verdict[Ingress][at] != Denied {
		t.Error("what the agent said counts less than the API")
	}
	s.DeletePod(older.PodKey, "1")
	if apply(); m.verdict[Ingress][at] != Denied {
		t.Error("the pod that remains lost its rules")
	}
}

// TestPodsNobodyHasFound close the node to addresses that are not known.
func TestPodsNobodyHasFound(t *testing.T) {
	s, m := NewState(), newModel()
	apply := func() {
		t.Helper()
		m.apply(t, s.Change())
		s.Accept()
	}
	s.SetPolicy(denyAll("x"))
	lost, there := pod("lost", "", 1), pod("there", "10.244.0.2", 1)
	lost.UID, there.UID = "1", "2"
	s.ReplacePods([]Pod{lost, there})
	s.FirstListDone()
	apply()
	if _, ok := m.known[there.Addresses[0]]; !m.guard || !ok {
		t.Fatalf("a pod is not found, but guard is %t, known %v", m.guard, m.known)
	}
	later := pod("later", "", 2)
	later.UID = "3"
	lost.Addresses = []netip.Addr{netip.MustParseAddr("10.244.0.3")}
	s.SetPod(later)
	s.SetAttached(lost)
	if apply(); m.guard {
		t.Error("all who were there are found; who comes later is told of before it starts")
	}
}

// TestToldBeforeShown: lists of the API that are behind take away neither a pod nor its address.
func TestToldBeforeShown(t *testing.T) {
	s, m := NewState(), newModel()
	at := netip.MustParseAddr("10.244.0.1")
	s.SetPolicy(denyAll("web"))
	old, now := pod("web", "10.244.0.9", 5), pod("web", "10.244.0.1", 9)
	old.UID, now.UID = "1", "2"
	check := func(what string) {
		t.Helper()
		m.apply(t, s.Change())
		s.Accept()
		if m.verdict[Ingress][at] != Denied {
			t.Errorf("%s: the pod has no rules", what)
		}
	}
	s.SetPod(old)
	s.SetAttached(now)
	check("told")
	s.SetPod(old)
	check("the API still shows the pod before it")
	s.DeletePod(old.PodKey, "1")
	s.ReplacePods(nil)
	check("the API does not show it")
	shown := now
	shown.Addresses = nil
	s.SetPod(shown)
	check("the API shows it without an address")
	shown.Labels = map[string]string{"app": "web", "more": "yes"}
	s.SetPod(shown)
	check("the API shows it again")
	s.ReplacePods(nil)
	m.apply(t, s.Change())
	s.Accept()
	if len(m.verdict[Ingress]) != 0 || len(s.attached) != 0 {
		t.Error("a pod that the API has no more keeps its rules")
	}
}

func TestWhatCannotBeUnderstoodIsNamed(t *testing.T) {
	np := &networking.NetworkPolicy{}
	np.Spec.PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
	np.Spec.Ingress = []networking.NetworkPolicyIngressRule{{From: []networking.NetworkPolicyPeer{
		{IPBlock: &networking.IPBlock{CIDR: "10.0.0.0/99"}}, {IPBlock: &networking.IPBlock{CIDR: "10.0.0.0/8", Except: []string{"x"}}}, {}}}}
	end := int32(5)
	np.Spec.Egress = []networking.NetworkPolicyEgressRule{{Ports: []networking.NetworkPolicyPort{{EndPort: &end}}}}
	faults := strings.Join(Compile(np).Faults, "\n")
	for _, want := range []string{"spec.podSelector", `spec.ingress[0].peers[0].ipBlock: "10.0.0.0/99"`, "peers[1].ipBlock: except", "peers[2]", "spec.egress[0].ports[0]"} {
		if !strings.Contains(faults, want) {
			t.Errorf("%q is not named in:\n%s", want, faults)
		}
	}
}

func FuzzCompile(f *testing.F) {
	for _, np := range []networking.NetworkPolicySpec{
		{Ingress: []networking.NetworkPolicyIngressRule{{From: []networking.NetworkPolicyPeer{{IPBlock: &networking.IPBlock{CIDR: "10.0.0.0/8", Except: []string{"::/0", "10.255.255.0/24"}}}}}}},
		{PolicyTypes: []networking.PolicyType{"Egress", "Sideways"}, Egress: []networking.NetworkPolicyEgressRule{{}}},
	} {
		object := networking.NetworkPolicy{Spec: np}
		raw, _ := object.Marshal()
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var np networking.NetworkPolicy
		if np.Unmarshal(raw) != nil {
			return
		}
		np.Namespace = "default"
		s, m := NewState(), newModel()
		s.SetPolicy(denyAll("web"))
		web, other := pod("web", "10.244.0.1", 1), pod("other", "10.244.0.2", 1)
		web.UID, other.UID = "1", "2"
		s.SetPod(web)
		s.SetPod(other)
		s.SetNamespace("default", nil)
		np.Name = "fuzzed"
		s.SetPolicy(Compile(&np))
		m.apply(t, s.Change())
		s.Accept()
		for port := range uint16(100) {
			flow := Flow{other.Addresses[0], web.Addresses[0], TCP, port}
			if a, b := m.allows(flow), s.Allows(flow); a != b {
				t.Fatalf("the chains say %t, the state %t", a, b)
			}
		}
	})
}
