package policytest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Node is the name of the node that enforces the policies.
const Node = "node"

// Dice returns a random number from 0 to n-1.
type Dice func(n int) int

// Seeded returns dice with the same sequence for equal seeds.
func Seeded(seed uint64) Dice { return rand.New(rand.NewPCG(seed, 0)).IntN }

func one[T any](d Dice, of ...T) T { return of[d(len(of))] }

func some[T any](d Dice, most int, make func() T) []T {
	var list []T
	for range d(most + 1) {
		list = append(list, make())
	}
	return list
}

// World is the content of a cluster.
type World struct {
	Namespaces []*v1.Namespace
	Pods       []*v1.Pod
	Policies   []*networking.NetworkPolicy
}

// String describes the world, for messages of failed tests.
func (w *World) String() string {
	text, err := json.MarshalIndent(w, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Namespace returns a random namespace of that name.
func (d Dice) Namespace(name string) *v1.Namespace {
	return &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		v1.LabelMetadataName: name, "team": one(d, "red", "blue"),
	}}}
}

// Labels returns random labels of a pod.
func (d Dice) Labels() map[string]string {
	labels := map[string]string{"app": one(d, "a", "b", "c")}
	if d(2) == 0 {
		labels["tier"] = one(d, "x", "y")
	}
	return labels
}

// Pod returns a random pod with these addresses. The port web has different numbers in different pods; dns has both
// protocols.
func (d Dice) Pod(namespace, name string, addresses ...string) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name), Labels: d.Labels()},
		Spec:       v1.PodSpec{NodeName: Node},
		Status:     v1.PodStatus{Phase: v1.PodRunning},
	}
	p.Spec.Containers = []v1.Container{
		{Name: "one", Ports: []v1.ContainerPort{{Name: "web", ContainerPort: one[int32](d, 80, 81), Protocol: v1.ProtocolTCP}}},
		{Name: "two", Ports: []v1.ContainerPort{{Name: "dns", ContainerPort: 53, Protocol: v1.ProtocolUDP}, {ContainerPort: 82}}},
	}
	if d(2) == 0 {
		p.Spec.Containers[1].Ports[0].Protocol = v1.ProtocolTCP
	}
	for _, a := range addresses {
		p.Status.PodIPs = append(p.Status.PodIPs, v1.PodIP{IP: a})
	}
	if len(addresses) > 0 {
		p.Status.PodIP = addresses[0]
	}
	return p
}

// Policy returns a random policy. Some have invalid parts, as older API servers accepted them.
func (d Dice) Policy(namespace, name string) *networking.NetworkPolicy {
	np := &networking.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	np.Spec.PodSelector = *d.Selector("app")
	in, out := networking.PolicyTypeIngress, networking.PolicyTypeEgress
	np.Spec.PolicyTypes = one(d, nil, []networking.PolicyType{in}, []networking.PolicyType{out}, []networking.PolicyType{in, out})
	for _, p := range some(d, 3, d.peersAndPorts) {
		np.Spec.Ingress = append(np.Spec.Ingress, networking.NetworkPolicyIngressRule{From: p.peers, Ports: p.ports})
	}
	for _, p := range some(d, 3, d.peersAndPorts) {
		np.Spec.Egress = append(np.Spec.Egress, networking.NetworkPolicyEgressRule{To: p.peers, Ports: p.ports})
	}
	return np
}

type peersAndPorts struct {
	peers []networking.NetworkPolicyPeer
	ports []networking.NetworkPolicyPort
}

func (d Dice) peersAndPorts() peersAndPorts {
	return peersAndPorts{some(d, 3, d.Peer), some(d, 3, d.Port)}
}

// Selector returns a random selector for the values of a label.
func (d Dice) Selector(label string) *metav1.LabelSelector {
	values := map[string][]string{"app": {"a", "b", "c"}, "team": {"red", "blue"}}[label]
	value := one(d, values...)
	return one(d,
		&metav1.LabelSelector{},
		&metav1.LabelSelector{MatchLabels: map[string]string{label: value}},
		&metav1.LabelSelector{MatchLabels: map[string]string{label: value}, MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "tier", Operator: metav1.LabelSelectorOpExists}}},
		&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: label, Operator: metav1.LabelSelectorOpIn, Values: []string{value, "z"}}}},
		&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: label, Operator: metav1.LabelSelectorOpNotIn, Values: []string{value}}}},
		&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "tier", Operator: metav1.LabelSelectorOpDoesNotExist}}},
		&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: label, Operator: "Like", Values: []string{value}}}},
	)
}

// Peer returns a random peer.
func (d Dice) Peer() networking.NetworkPolicyPeer {
	switch d(9) {
	case 0, 1:
		return networking.NetworkPolicyPeer{PodSelector: d.Selector("app")}
	case 2, 3:
		return networking.NetworkPolicyPeer{NamespaceSelector: d.Selector("team")}
	case 4, 5:
		return networking.NetworkPolicyPeer{NamespaceSelector: d.Selector("team"), PodSelector: d.Selector("app")}
	case 6, 7:
		return networking.NetworkPolicyPeer{IPBlock: d.Block()}
	}
	return one(d, networking.NetworkPolicyPeer{}, networking.NetworkPolicyPeer{PodSelector: d.Selector("app"), IPBlock: d.Block()})
}

// Block returns a random block, mostly of networks that contain Addresses.
func (d Dice) Block() *networking.IPBlock {
	return one(d,
		&networking.IPBlock{CIDR: "0.0.0.0/0"},
		&networking.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"10.244.0.0/30", "10.244.0.8/29"}},
		&networking.IPBlock{CIDR: "10.244.0.0/16", Except: []string{"10.244.0.0/29"}},
		&networking.IPBlock{CIDR: "10.244.0.0/28", Except: []string{"10.244.0.4/30", "10.244.0.6/32", "192.0.2.0/24"}},
		&networking.IPBlock{CIDR: fmt.Sprintf("10.244.0.%d/32", d(16))},
		&networking.IPBlock{CIDR: fmt.Sprintf("10.244.0.%d/31", d(16))},
		&networking.IPBlock{CIDR: "192.0.2.0/24", Except: []string{"192.0.2.1/32"}},
		&networking.IPBlock{CIDR: "128.0.0.0/1", Except: []string{"255.255.255.255/32"}},
		&networking.IPBlock{CIDR: "10.244.0.0/16", Except: []string{"10.244.0.0/16"}},
		&networking.IPBlock{CIDR: "::/0"},
		&networking.IPBlock{CIDR: "fd00:244::/64", Except: []string{"fd00:244::/125"}},
		&networking.IPBlock{CIDR: "10.244.0.0/33"},
		&networking.IPBlock{CIDR: "10.244.0.0/16", Except: []string{"nonsense"}},
	)
}

// Port returns a random port.
func (d Dice) Port() networking.NetworkPolicyPort {
	tcp, udp, sctp, odd := v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP, v1.Protocol("ICMP")
	number := func(n int) *intstr.IntOrString { p := intstr.FromInt32(int32(n)); return &p }
	name := func(s string) *intstr.IntOrString { p := intstr.FromString(s); return &p }
	end := func(n int32) *int32 { return &n }
	return one(d,
		networking.NetworkPolicyPort{},
		networking.NetworkPolicyPort{Protocol: &udp},
		networking.NetworkPolicyPort{Port: number(80)},
		networking.NetworkPolicyPort{Protocol: &tcp, Port: number(81)},
		networking.NetworkPolicyPort{Protocol: &udp, Port: number(53)},
		networking.NetworkPolicyPort{Protocol: &sctp, Port: number(80)},
		networking.NetworkPolicyPort{Protocol: &tcp, Port: number(80), EndPort: end(int32(80 + d(3)))},
		networking.NetworkPolicyPort{Protocol: &udp, Port: number(1), EndPort: end(65535)},
		networking.NetworkPolicyPort{Protocol: &tcp, Port: name("web")},
		networking.NetworkPolicyPort{Protocol: &udp, Port: name("dns")},
		networking.NetworkPolicyPort{Protocol: &tcp, Port: name("dns")},
		networking.NetworkPolicyPort{Port: name(strings.Repeat("long", 20))},
		networking.NetworkPolicyPort{Protocol: &tcp, Port: number(82), EndPort: end(80)},
		networking.NetworkPolicyPort{Protocol: &tcp, Port: name("web"), EndPort: end(90)},
		networking.NetworkPolicyPort{Protocol: &odd, Port: number(80)},
		networking.NetworkPolicyPort{Protocol: &tcp, Port: number(70000)},
	)
}
