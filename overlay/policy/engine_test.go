package policy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/balsahq/balsa/overlay/policy/policytest"
)

type (
	spec    = networking.NetworkPolicySpec
	ingress = networking.NetworkPolicyIngressRule
	egress  = networking.NetworkPolicyEgressRule
	peer    = networking.NetworkPolicyPeer
)

func app(name string) map[string]string { return map[string]string{"app": name} }

func fromApp(name string) spec {
	return spec{Ingress: []ingress{{From: []peer{{PodSelector: &metav1.LabelSelector{MatchLabels: app(name)}}}}}}
}

// threePods is a node with pods a, b and c, and d elsewhere, all of which answer at 80 and 81.
func threePods(t *testing.T) *world {
	w := newWorld(t, 3, 1)
	w.namespace("default", map[string]string{"team": "red"})
	for _, name := range []string{"a", "b", "c", "d"} {
		w.places[name].serve(80)
		w.places[name].serve(81)
		w.pod("default", name, app(name))
	}
	return w
}

func TestNothingIsThereWithoutPolicies(t *testing.T) {
	w := threePods(t)
	w.start()
	if err := w.engine.Admit(t.Context(), w.pod("default", "outside", nil), nil); err != nil {
		t.Error(err)
	}
	none := func() bool { return !strings.Contains(w.node.Sh("nft list tables"), "balsa-policy") }
	if !none() {
		t.Error("there is a table:", w.rules())
	}
	for _, a := range w.client.Actions() {
		if a.GetResource().Resource != "networkpolicies" && a.GetVerb() != "create" {
			t.Errorf("%s of %s without a policy", a.GetVerb(), a.GetResource().Resource)
		}
	}
	w.policy("default", "deny", "a", spec{})
	w.can("b", "a", 80, false)
	w.noPolicy("default", "deny")
	w.can("b", "a", 80, true)
	w.eventually("table gone", none)
	w.policy("default", "deny", "b", spec{})
	w.can("a", "b", 80, false)
}

func TestObjectsThatChange(t *testing.T) {
	w := threePods(t)
	w.start()
	w.policy("default", "p", "a", fromApp("b"))
	w.can("c", "a", 80, false)
	w.can("b", "a", 80, true)
	w.can("d", "a", 80, false)
	w.can("outside", "a", 80, false)

	t.Log("a pod's labels")
	c := w.pod("other", "outside", nil).DeepCopy() // some pod that matters to nobody
	c.Namespace, c.Name, c.UID, c.Labels = "default", "c", "default/c", app("b")
	c.Status.PodIPs = []v1.PodIP{{IP: w.places["c"].ip()}}
	if _, err := w.client.CoreV1().Pods("default").Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.can("c", "a", 80, true)
	if err := w.client.CoreV1().Pods("default").Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.can("c", "a", 80, false)

	t.Log("a namespace's labels")
	w.policy("default", "q", "a", spec{Ingress: []ingress{{From: []peer{{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "blue"}}}}}}})
	w.can("d", "a", 80, false)
	w.namespace("default", map[string]string{"team": "blue"})
	w.can("d", "a", 80, true)
	w.namespace("default", map[string]string{"team": "red"})
	w.can("d", "a", 80, false)

	t.Log("the policies")
	w.policy("default", "p", "a", fromApp("d"))
	w.can("b", "a", 80, false)
	w.can("d", "a", 80, true)
	w.noPolicy("default", "q")
	w.noPolicy("default", "p")
	w.can("outside", "a", 80, true)
}

func TestPortsAndBlocks(t *testing.T) {
	w := threePods(t)
	w.start()
	web, end, tcp := intstr.FromString("web"), int32(80), v1.ProtocolTCP
	low := intstr.FromInt32(79)
	w.policy("default", "name", "a", spec{Ingress: []ingress{{Ports: []networking.NetworkPolicyPort{{Port: &web, Protocol: &tcp}}}}})
	pod, err := w.client.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	at := int(pod.Spec.Containers[0].Ports[0].ContainerPort)
	w.can("b", "a", at, true)
	w.can("b", "a", 80+81-at, false)
	w.policy("default", "range", "b", spec{Ingress: []ingress{{Ports: []networking.NetworkPolicyPort{{Port: &low, EndPort: &end}}}}})
	w.can("a", "b", 81, false)
	w.can("a", "b", 80, true)
	outside := w.places["outside"].ip() + "/32"
	w.policy("default", "block", "c", spec{Ingress: []ingress{{From: []peer{{IPBlock: &networking.IPBlock{CIDR: "0.0.0.0/0", Except: []string{outside}}}}}}})
	w.can("outside", "c", 80, false)
	w.can("a", "c", 80, true)
	w.can("d", "c", 80, true)
}

// TestNodeAndItselfAreAlwaysAllowed, whatever else is denied; a Service leads to what the pod behind it allows.
func TestNodeAndItselfAreAlwaysAllowed(t *testing.T) {
	w := threePods(t)
	w.start()
	w.node.Sh(`nft add table ip services
		nft add chain ip services pre '{ type nat hook prerouting priority dstnat; }'
		nft add chain ip services post '{ type nat hook postrouting priority srcnat; }'
		nft add rule ip services pre ip daddr 10.96.0.1 tcp dport 80 dnat to %[1]s:80
		nft add rule ip services pre ip daddr 10.96.0.2 tcp dport 81 dnat to %[2]s:80
		nft add rule ip services post ip saddr %[1]s ip daddr %[1]s masquerade`, w.places["a"].ip(), w.places["b"].ip())
	both := []networking.PolicyType{networking.PolicyTypeIngress, networking.PolicyTypeEgress}
	w.policy("default", "deny", "a", spec{PolicyTypes: both})
	w.can("b", "a", 80, false)
	w.can("a", "b", 80, false)
	service := func(from, at string, want bool) {
		t.Helper()
		w.eventually(fmt.Sprintf("%s reaches the service %s: %t", from, at, want), func() bool { return w.places[from].reaches("tcp", at) == want })
	}
	service("a", "10.96.0.1:80", true)
	service("b", "10.96.0.1:80", false)
	c, err := w.node.dial("tcp", "", w.places["a"].ip()+":80", inTheEnd)
	if err != nil {
		t.Fatal("the node does not reach its pod:", err)
	}
	c.Close()
	node := &place{w.node, [2]string{"10.244.0.1"}, false}
	node.serve(8080)
	if !w.places["a"].reachesWithin(inTheEnd, "tcp", "10.244.0.1:8080") {
		t.Error("a pod does not reach its node")
	}
	eighty := intstr.FromInt32(80)
	w.policy("default", "allow", "a", spec{PolicyTypes: both, Egress: []egress{{
		To:    []peer{{PodSelector: &metav1.LabelSelector{MatchLabels: app("b")}}},
		Ports: []networking.NetworkPolicyPort{{Port: &eighty}},
	}}})
	service("a", "10.96.0.2:81", true)
}

// talk is a connection that goes on.
type talk struct {
	net.Conn
	in *bufio.Reader
}

func (w *world) talk(from, to string) talk {
	w.t.Helper()
	c, err := w.places[from].dial("tcp", w.places[from].ip(), w.places[to].ip()+":80", inTheEnd)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	t := talk{c, bufio.NewReader(c)}
	_ = c.SetReadDeadline(time.Now().Add(inTheEnd))
	if _, err := t.in.ReadString('\n'); err != nil { // the greeting
		w.t.Fatal(err)
	}
	return t
}

// goesOn tells whether what is said now is answered soon.
func (t talk) goesOn() bool { return t.goesOnWithin(patienceOfProbe) }

func (t talk) goesOnWithin(limit time.Duration) bool {
	more := fmt.Sprint("more ", talked.Add(1), "\n")
	_ = t.SetDeadline(time.Now().Add(limit))
	if _, err := io.WriteString(t, more); err != nil {
		return false
	}
	for { // answers to what was said before may be late
		answer, err := t.in.ReadString('\n')
		if err != nil || answer == more {
			return err == nil
		}
	}
}

var talked atomic.Int64

func TestConnectionsThatAreNoLongerAllowedAreCut(t *testing.T) {
	w := threePods(t)
	w.start()
	w.policy("default", "p", "a", fromApp("b"))
	w.can("c", "a", 80, false)
	in, out, far := w.talk("b", "a"), w.talk("a", "b"), w.talk("b", "d")
	datagrams, err := w.places["b"].dial("udp", w.places["b"].ip(), w.places["a"].ip()+":80", inTheEnd)
	if err != nil {
		t.Fatal(err)
	}
	defer datagrams.Close()
	if !answeredWithin(inTheEnd, datagrams, "udp") {
		t.Fatal("no answer")
	}
	pushed, pushes := w.pushed("b", "a")
	w.policy("default", "p", "a", fromApp("c"))
	w.can("b", "a", 80, false)
	w.eventually("connection cut", func() bool { return !in.goesOn() })
	w.eventually("the other end cut", func() bool { return !pushes() })
	_, _ = pushed.Write([]byte("?"))
	if pushes() || in.goesOn() {
		t.Error("the other end brought the connection back")
	}
	w.eventually("datagrams cut", func() bool { return !answered(datagrams, "udp") })
	if !out.goesOnWithin(inTheEnd) || !far.goesOnWithin(inTheEnd) {
		t.Error("a connection that is allowed was cut")
	}
	w.policy("default", "p", "a", fromApp("b"))
	w.eventually("datagrams again", func() bool { return answered(datagrams, "udp") })
	w.eventually("connection again", func() bool { return in.goesOn() })
	if !out.goesOnWithin(inTheEnd) || !far.goesOnWithin(inTheEnd) {
		t.Error("a connection that is allowed was cut")
	}
}

// pushed is a connection on which the end that was connected to speaks when it is told to; pushes tells whether that came.
func (w *world) pushed(from, to string) (client net.Conn, pushes func() bool) {
	w.t.Helper()
	var l net.Listener
	err := w.places[to].Do(func() (err error) {
		l, err = net.Listen("tcp", w.places[to].ip()+":90")
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	client, err = w.places[from].dial("tcp", w.places[from].ip(), l.Addr().String(), inTheEnd)
	if err != nil {
		w.t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	return client, func() bool {
		if _, err := server.Write([]byte("!")); err != nil {
			return false
		}
		_ = client.SetReadDeadline(time.Now().Add(patienceOfProbe))
		_, err := client.Read(make([]byte, 1))
		return err == nil
	}
}

// TestRestartLeavesTheRules: they hold while nobody runs, and the next one changes nothing that is right.
func TestRestartLeavesTheRules(t *testing.T) {
	w := threePods(t)
	w.start()
	w.policy("default", "p", "a", fromApp("b"))
	w.policy("default", "q", "c", spec{Ingress: []ingress{{From: []peer{{IPBlock: &networking.IPBlock{CIDR: "10.0.0.0/8"}}}}}})
	w.can("c", "a", 80, false)
	w.can("outside", "c", 80, false)
	in := w.talk("b", "a")
	w.settled()
	before := w.rules()
	w.stop()
	w.can("c", "a", 80, false)
	w.can("b", "a", 80, true)
	w.start()
	w.settled()
	if after := w.rules(); after != before {
		t.Errorf("a restart changed\n%s\nto\n%s", before, after)
	}
	if !in.goesOnWithin(inTheEnd) {
		t.Error("a restart cut a connection")
	}
	w.stop()
	w.policy("default", "p", "a", fromApp("c"))
	w.noPolicy("default", "q")
	w.start()
	w.can("c", "a", 80, true)
	w.can("b", "a", 80, false)
	w.can("outside", "c", 80, true)
	w.stop()
	w.noPolicy("default", "p")
	w.start()
	w.eventually("table gone", func() bool { return !strings.Contains(w.node.Sh("nft list tables"), "balsa-policy") })
}

// withoutHandles is the table, in some order.
func withoutHandles(rules string) string {
	list := lines(rules)
	for i, l := range list {
		list[i], _, _ = strings.Cut(l, " # handle")
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

func TestDriftIsRepaired(t *testing.T) {
	w := threePods(t)
	w.start()
	w.policy("default", "p", "a", fromApp("b"))
	w.policy("default", "q", "c", spec{Ingress: []ingress{{From: []peer{{IPBlock: &networking.IPBlock{CIDR: "10.0.0.0/8"}}}}}})
	w.can("c", "a", 80, false)
	w.can("outside", "c", 80, false)
	w.settled()
	want := withoutHandles(w.rules())
	chain := ""
	for _, l := range lines(w.rules()) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(l), "chain pod-"); ok {
			chain = "pod-" + strings.Fields(name)[0]
		}
	}
	for _, drift := range []string{
		"delete table ip balsa-policy",
		"flush chain ip balsa-policy forward",
		"flush chain ip balsa-policy " + chain,
		"flush chain ip balsa-policy denied",
		"insert rule ip balsa-policy denied accept",
		"add rule ip balsa-policy unknown-to drop",
		"flush map ip balsa-policy ingress",
		"delete element ip balsa-policy ingress { " + w.places["a"].ip() + " }",
		"add element ip balsa-policy self { 10.1.1.1 . 10.1.1.1 }",
	} {
		w.node.Sh("nft '%s'", drift)
		w.eventually("repaired: "+drift, func() bool { return withoutHandles(w.rules()) == want })
		w.can("c", "a", 80, false)
		w.can("b", "a", 80, true)
	}
	before := w.rules()
	w.node.Sh("nft add table ip others; nft add chain ip others c; nft delete table ip others")
	w.policy("default", "marker", "nobody", spec{})
	w.settled()
	if after := w.rules(); after != before {
		t.Errorf("another's table made us change\n%s\nto\n%s", before, after)
	}
}

// TestFirstPacketIsJudged: when Admit has returned, the address has its rules, though the API does not know it yet.
func TestFirstPacketIsJudged(t *testing.T) {
	w := newWorld(t, 3, 0)
	w.namespace("default", nil)
	for _, name := range []string{"a", "b", "c"} {
		w.places[name].serve(80)
	}
	w.pod("default", "b", app("b"))
	w.pod("default", "c", app("c"))
	w.start()
	w.policy("default", "p", "a", fromApp("b"))
	w.policy("default", "q", "c", fromApp("a"))
	w.can("b", "c", 80, false)
	new := policytest.Seeded(1).Pod("default", "a")
	new.Labels = app("a")
	begin := time.Now()
	if err := w.engine.Admit(t.Context(), new, addrs(w.places["a"].address)); err != nil {
		t.Fatal(err)
	}
	t.Log("the rules were in the kernel after", time.Since(begin))
	at := func(name string) string { return w.places[name].ip() + ":80" }
	if w.places["c"].reaches("tcp", at("a")) {
		t.Error("somebody reached the pod before its rules did")
	}
	if !w.places["b"].reachesWithin(inTheEnd, "tcp", at("a")) || !w.places["a"].reachesWithin(inTheEnd, "tcp", at("c")) {
		t.Error("what is allowed of the pod is not", w.rules())
	}
	t.Log("the API shows it, first without its address, then gone")
	if _, err := w.client.CoreV1().Pods("default").Create(t.Context(), new, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.policy("default", "q", "c", spec{Ingress: []ingress{{From: []peer{{PodSelector: &metav1.LabelSelector{MatchLabels: app("a")}}, {PodSelector: &metav1.LabelSelector{MatchLabels: app("b")}}}}}})
	w.can("b", "c", 80, true)
	if w.places["c"].reaches("tcp", at("a")) || !w.places["a"].reachesWithin(inTheEnd, "tcp", at("c")) {
		t.Error("the pod lost its address")
	}
	t.Log("a sandbox made anew has another address")
	if err := w.engine.Admit(t.Context(), new, []netip.Addr{netip.MustParseAddr("10.244.0.77")}); err != nil {
		t.Fatal(err)
	}
	if w.places["a"].reaches("tcp", at("c")) || !strings.Contains(w.rules(), "10.244.0.77") {
		t.Error("the former address still counts")
	}
	if err := w.client.CoreV1().Pods("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("forgotten", func() bool { return !strings.Contains(w.rules(), "10.244.0.77") })
}

// TestNobodyIsAdmittedBlindly: without the API there is an error and no pod.
func TestNobodyIsAdmittedBlindly(t *testing.T) {
	w := newWorld(t, 1, 0)
	e, err := New(Config{NodeName: policytest.Node, Client: w.client, Bridge: bridge, NetNS: w.node.Path})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := e.Admit(ctx, policytest.Seeded(1).Pod("default", "a"), addrs(w.places["a"].address)); !errors.Is(err, ErrNotSynced) {
		t.Errorf("admitted with %v", err)
	}
}

// TestPodsThatWereThereBeforeAreNotOpen: after a restart of all, a pod of which nobody knows where it is has no way around its
// policies; guests may talk when all are found.
func TestPodsThatWereThereBeforeAreNotOpen(t *testing.T) {
	w := newWorld(t, 3, 0)
	w.namespace("default", nil)
	for _, name := range []string{"a", "b", "c"} {
		w.places[name].serve(80)
	}
	lost := w.pod("default", "a", app("a"), func(p *v1.Pod) { p.Status = v1.PodStatus{} })
	w.pod("default", "b", app("b"))
	w.policy("default", "p", "a", spec{})
	w.start()
	w.can("b", "a", 80, false)
	w.can("c", "b", 80, false) // c is a guest, or the lost one
	w.can("outside", "b", 80, true)
	if err := w.engine.Admit(t.Context(), lost, addrs(w.places["a"].address)); err != nil {
		t.Fatal(err)
	}
	if !w.places["c"].reachesWithin(inTheEnd, "tcp", w.places["b"].ip()+":80") {
		t.Error("all are found, and a guest may not talk")
	}
	if w.places["b"].reaches("tcp", w.places["a"].ip()+":80") {
		t.Error("the pod that was found has no rules")
	}
}

func TestMalformedPoliciesHarmNobody(t *testing.T) {
	w := threePods(t)
	w.start()
	end := int32(1)
	long := intstr.FromString(strings.Repeat("x", 300))
	w.policy("default", "bad", "", spec{
		PodSelector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "\x00", Operator: "?"}}},
	})
	w.policy("default", "worse", "b", spec{
		PolicyTypes: []networking.PolicyType{"Ingress", "Sideways"},
		Ingress: []ingress{{
			From:  []peer{{}, {IPBlock: &networking.IPBlock{CIDR: "10.0.0.0/8", Except: []string{"10.0.0.0/33"}}}, {IPBlock: &networking.IPBlock{}}},
			Ports: []networking.NetworkPolicyPort{{Port: &long}, {EndPort: &end}},
		}},
	})
	w.policy("default", "p", "a", fromApp("b"))
	w.can("c", "a", 80, false)
	w.can("b", "a", 80, true)
	w.can("a", "b", 80, false)
	w.can("a", "c", 80, true)
	many, all := spec{}, ingress{}
	for i := range 3000 { // in one set, more than one message of the kernel's takes
		all.From = append(all.From, peer{IPBlock: &networking.IPBlock{CIDR: fmt.Sprintf("192.0.%d.%d/32", i/100, i%100*2+1)}})
		if i < 300 {
			many.Ingress = append(many.Ingress, ingress{From: all.From[i:]})
		}
	}
	many.Ingress = append(many.Ingress, all)
	w.policy("default", "many", "c", many)
	w.can("a", "c", 80, false)
	w.can("outside", "c", 80, true)
	w.policy("default", "p", "a", fromApp("c"))
	w.can("b", "a", 80, false)
}

func TestCleanupRemovesTheTables(t *testing.T) {
	w := threePods(t)
	w.start()
	w.policy("default", "p", "a", spec{})
	w.can("b", "a", 80, false)
	w.stop()
	for range 2 {
		if err := Cleanup(w.node.Path); err != nil {
			t.Fatal(err)
		}
	}
	w.can("b", "a", 80, true)
}
