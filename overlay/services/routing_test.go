package services

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func service(with ...func(*v1.Service)) *v1.Service {
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: v1.ServiceSpec{ClusterIP: "10.96.0.20", ClusterIPs: []string{"10.96.0.20", "fd00::20"},
			Ports: []v1.ServicePort{{Name: "web", Port: 80, NodePort: 30080, Protocol: v1.ProtocolTCP}}},
	}
	for _, f := range with {
		f(s)
	}
	return s
}

// endpointOf parses "address[ here][ unready][ leaving]".
func endpointOf(text string) discovery.Endpoint {
	fields := strings.Fields(text)
	has := func(word string) bool { return slices.Contains(fields, word) }
	node, ready, leaving, yes := "elsewhere", !has("unready") && !has("leaving"), has("leaving"), true
	if has("here") {
		node = "node"
	}
	e := discovery.Endpoint{Addresses: fields[:1], NodeName: &node, Conditions: discovery.EndpointConditions{Ready: &ready, Terminating: &leaving}}
	if leaving {
		e.Conditions.Serving = &yes
	}
	return e
}

func sliceOf(endpoints ...string) *discovery.EndpointSlice {
	name, port := "web", int32(8080)
	s := &discovery.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discovery.LabelServiceName: "web"}},
		AddressType: discovery.AddressTypeIPv4, Ports: []discovery.EndpointPort{{Name: &name, Port: &port}},
	}
	for _, e := range endpoints {
		s.Endpoints = append(s.Endpoints, endpointOf(e))
	}
	return s
}

// lead says what happens to a packet: "to …" with the backends it may reach, "reject" or "drop"; "mark" when it is
// masqueraded.
func lead(t *Table, target Target, from string) string {
	source := netip.MustParseAddr(map[string]string{"pod": "10.244.0.5", "node": "192.0.2.1", "outside": "203.0.113.9"}[from])
	if guard := t.Guards[target.Guard]; target.Guard != "" && !slices.ContainsFunc(guard, func(p netip.Prefix) bool { return p.Contains(source) }) {
		return "drop"
	}
	to, lost := target.Lead, map[Refusal]string{NoRefusal: "nothing", Reject: "reject", Drop: "drop"}[target.Refusal]
	if to.Way.Source == Apart && from == "outside" {
		to, lost = target.Outside, "drop"
	}
	if !to.HasBackends() {
		return lost
	}
	out := ""
	switch s := to.Way.Source; {
	case s == HideAll, s == HideOutside && from != "pod", (s == HideNode || s == Apart) && from == "node":
		out = "mark "
	}
	return out + fmt.Sprintf("to %v", t.Groups[to.Group].Backends)
}

func (t *Table) leadAddress(a, from string) string {
	p := netip.MustParseAddrPort(a)
	return lead(t, t.Services[Address{p.Addr(), TCP, p.Port()}], from)
}

func (t *Table) leadPort(port uint16, from string) string {
	return lead(t, t.Ports[NodePort{TCP, port}], from)
}

var here = View{V4: true, Node: "node", Zone: "east", Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}

func name(s *v1.Service) string { return s.Namespace + "/" + s.Name }

func build(svc *v1.Service, list ...*discovery.EndpointSlice) *Table {
	p := NewPlan()
	ports, _ := Ports(svc, list, here)
	p.SetService(name(svc), ports)
	return p.Table()
}

func TestWherePacketsGo(t *testing.T) {
	local := v1.ServiceInternalTrafficPolicyLocal
	internalLocal := func(s *v1.Service) { s.Spec.InternalTrafficPolicy = &local }
	externalLocal := func(s *v1.Service) { s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal }
	balanced := func(s *v1.Service) {
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "198.51.100.2"}}
		s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "2001:db8::/32"}
	}
	const one, two = "10.244.0.2:8080", "10.244.1.2:8080"
	cases := []struct {
		name      string
		svc       *v1.Service
		endpoints []string
		target    string // an address, or a node port
		from      string
		want      string
	}{
		{"cluster address", service(), []string{"10.244.1.2", "10.244.0.2 here"}, "10.96.0.20:80", "pod", "to [" + one + " " + two + "]"},
		{"unready are left out", service(), []string{"10.244.1.2 unready", "10.244.0.2"}, "10.96.0.20:80", "pod", "to [" + one + "]"},
		{"leaving ones only when alone", service(), []string{"10.244.1.2 leaving", "10.244.0.2"}, "10.96.0.20:80", "pod", "to [" + one + "]"},
		{"leaving ones when alone", service(), []string{"10.244.1.2 leaving"}, "10.96.0.20:80", "pod", "to [" + two + "]"},
		{"nobody", service(), nil, "10.96.0.20:80", "pod", "reject"},
		{"nobody at the node port", service(), nil, "30080", "outside", "reject"},
		{"node port hides the source", service(), []string{"10.244.1.2"}, "30080", "outside", "mark to [" + two + "]"},
		{"internal local", service(internalLocal), []string{"10.244.1.2", "10.244.0.2 here"}, "10.96.0.20:80", "pod", "to [" + one + "]"},
		{"internal local, none here", service(internalLocal), []string{"10.244.1.2"}, "10.96.0.20:80", "pod", "drop"},
		{"internal local does not bind the node port", service(internalLocal), []string{"10.244.1.2"}, "30080", "outside", "mark to [" + two + "]"},
		{"external local keeps the source", service(externalLocal), []string{"10.244.1.2", "10.244.0.2 here"}, "30080", "outside", "to [" + one + "]"},
		{"external local, a pod asks", service(externalLocal), []string{"10.244.1.2"}, "30080", "pod", "to [" + two + "]"},
		{"external local, the node asks", service(externalLocal), []string{"10.244.1.2"}, "30080", "node", "mark to [" + two + "]"},
		{"external local, none here", service(externalLocal), []string{"10.244.1.2"}, "30080", "outside", "drop"},
		{"external local does not bind the cluster address", service(externalLocal), []string{"10.244.1.2"}, "10.96.0.20:80", "pod", "to [" + two + "]"},
		{"load balancer, allowed", service(balanced), []string{"10.244.1.2"}, "198.51.100.2:80", "node", "mark to [" + two + "]"},
		{"load balancer, not allowed", service(balanced), []string{"10.244.1.2"}, "198.51.100.2:80", "outside", "drop"},
		{"headless", service(func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", nil }), []string{"10.244.1.2"}, "30080", "outside", "nothing"},
		{"external name", service(func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeExternalName }), nil, "10.96.0.20:80", "pod", "nothing"},
		{"left to another proxy", service(func(s *v1.Service) { s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"} }),
			[]string{"10.244.1.2"}, "10.96.0.20:80", "pod", "nothing"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			table := build(c.svc, sliceOf(c.endpoints...))
			var got string
			if strings.Contains(c.target, ":") {
				got = table.leadAddress(c.target, c.from)
			} else {
				got = table.leadPort(30080, c.from)
			}
			if got != c.want {
				t.Errorf("%s from %s: %s, want %s", c.target, c.from, got, c.want)
			}
		})
	}
}

func TestEachFamilySeesItsOwn(t *testing.T) {
	six := sliceOf("fd00:1::2")
	six.AddressType = discovery.AddressTypeIPv6
	v6, _ := Ports(service(), []*discovery.EndpointSlice{sliceOf("10.244.0.2"), six}, View{Node: "node"})
	if len(v6) != 1 || len(v6[0].ClusterIPs) != 1 || v6[0].ClusterIPs[0].String() != "fd00::20" || v6[0].Everywhere[0].String() != "[fd00:1::2]:8080" {
		t.Errorf("IPv6: %+v", v6)
	}
}

func TestAffinityHasItsTimeout(t *testing.T) {
	seconds := int32(30)
	sticky := service(func(s *v1.Service) {
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}
	})
	table := build(sticky, sliceOf("10.244.0.2", "10.244.0.3"))
	for _, target := range table.Services {
		if target.Lead.Way.Sticky != 30 || !table.Groups[target.Lead.Group].Sticky {
			t.Errorf("%+v", target)
		}
	}
}

func TestHostPortsOfPods(t *testing.T) {
	pod := func(with ...func(*v1.Pod)) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Status: v1.PodStatus{PodIP: "10.244.0.2"},
			Spec: v1.PodSpec{Containers: []v1.Container{{Ports: []v1.ContainerPort{{HostPort: 80, ContainerPort: 8080, Protocol: v1.ProtocolUDP}, {ContainerPort: 9}}}}}}
		for _, f := range with {
			f(p)
		}
		return p
	}
	got := HostPorts([]*v1.Pod{
		pod(), pod(func(p *v1.Pod) { p.Spec.HostNetwork = true }), pod(func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }),
		pod(func(p *v1.Pod) { p.Status.PodIP = "" }), pod(func(p *v1.Pod) { p.Spec.Containers[0].Ports[0].HostIP = "::1" }),
	}, true)
	want := HostPort{Pod: "default/p", Port: 80, Protocol: UDP, Backend: netip.MustParseAddrPort("10.244.0.2:8080")}
	if len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want only %+v", got, want)
	}
}

func TestStaleFlowsNameWhatTheKernelMustForget(t *testing.T) {
	udp := service(func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolUDP })
	p := NewPlan()
	after := func(endpoints ...string) []Stale {
		s := sliceOf(endpoints...)
		protocol := v1.ProtocolUDP
		s.Ports[0].Protocol = &protocol
		ports, _ := Ports(udp, []*discovery.EndpointSlice{s}, here)
		p.SetService(name(udp), ports)
		return p.TakeDelta().Stale
	}
	after()
	if got := after("10.244.0.3"); len(got) != 2 || got[0].Backend.IsValid() {
		t.Errorf("the first backend: %v", got)
	}
	if got := after("10.244.0.2", "10.244.0.3"); len(got) != 0 {
		t.Errorf("one more: %v", got)
	}
	if got := after("10.244.0.3"); len(got) != 2 || got[0].Backend.Addr().String() != "10.244.0.2" {
		t.Errorf("a backend gone: %v, want its cluster address and its node port", got)
	}
	if got := after("10.244.0.3"); len(got) != 0 {
		t.Errorf("nothing changed: %v", got)
	}
}

func TestHintsKeepPacketsNear(t *testing.T) {
	hinted := func(address string, zones, nodes []string) discovery.Endpoint {
		e := endpointOf(address)
		e.Hints = &discovery.EndpointHints{}
		for _, z := range zones {
			e.Hints.ForZones = append(e.Hints.ForZones, discovery.ForZone{Name: z})
		}
		for _, n := range nodes {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discovery.ForNode{Name: n})
		}
		return e
	}
	east, west, mine, other := []string{"east"}, []string{"west"}, []string{"node"}, []string{"other"}
	cases := []struct {
		name      string
		endpoints []discovery.Endpoint
		want      string
	}{
		{"the zone's own", []discovery.Endpoint{hinted("10.244.0.2", east, nil), hinted("10.244.0.3", west, nil)}, "10.244.0.2"},
		{"the node's own", []discovery.Endpoint{hinted("10.244.0.2", east, mine), hinted("10.244.0.3", east, other)}, "10.244.0.2"},
		{"none for the node, so the zone's", []discovery.Endpoint{hinted("10.244.0.2", east, other), hinted("10.244.0.3", west, other)}, "10.244.0.2"},
		{"one without a hint", []discovery.Endpoint{hinted("10.244.0.2", east, nil), endpointOf("10.244.0.3")}, "10.244.0.2 10.244.0.3"},
		{"none for this zone", []discovery.Endpoint{hinted("10.244.0.2", west, nil)}, "10.244.0.2"},
		{"only unready ones lack a hint", []discovery.Endpoint{hinted("10.244.0.2", east, nil), hinted("10.244.0.4", west, nil), endpointOf("10.244.0.3 unready")}, "10.244.0.2"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := sliceOf()
			s.Endpoints = c.endpoints
			ports, _ := Ports(service(), []*discovery.EndpointSlice{s}, here)
			var got []string
			for _, b := range ports[0].Everywhere {
				got = append(got, b.Addr().String())
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%v, want %s", got, c.want)
			}
		})
	}
}

func TestFaultsAreLeftOutAndNamed(t *testing.T) {
	svc := service(func(s *v1.Service) {
		s.Spec.ExternalIPs = []string{"127.0.0.1", "nonsense", "203.0.113.1"}
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "bad", Port: 70000})
	})
	ports, faults := Ports(svc, []*discovery.EndpointSlice{sliceOf("127.0.0.1", "169.254.1.1", "10.96.0.7", "fd00::1", "10.244.0.2")}, here)
	if len(ports) != 1 || len(ports[0].ExternalIPs) != 1 || len(ports[0].Everywhere) != 1 {
		t.Errorf("ports: %+v", ports)
	}
	text := strings.Join(faults, "; ")
	for _, want := range []string{"127.0.0.1", "nonsense", "70000", "169.254.1.1", "10.96.0.7", "fd00::1"} {
		if !strings.Contains(text, want) {
			t.Errorf("faults %q do not name %s", text, want)
		}
	}
}

func TestOfTwoThatWantAnAddressTheFirstByNameHasIt(t *testing.T) {
	p := NewPlan()
	for _, n := range []string{"b", "a"} {
		svc := service(func(s *v1.Service) { s.Name = n })
		ports, _ := Ports(svc, []*discovery.EndpointSlice{sliceOf("10.244.0.2")}, here)
		p.SetService(name(svc), ports)
	}
	if got := p.services.owner[Address{netip.MustParseAddr("10.96.0.20"), TCP, 80}]; got != "default/a" {
		t.Errorf("owner %s", got)
	}
	if got := p.Conflicts(); len(got) != 2 || !strings.Contains(got[0], "default/b") {
		t.Errorf("rivals %v", got)
	}
	p.SetService("default/a", nil)
	if got := p.services.owner[Address{netip.MustParseAddr("10.96.0.20"), TCP, 80}]; got != "default/b" || len(p.Conflicts()) != 0 {
		t.Errorf("after the first is gone: owner %s, rivals %v", got, p.Conflicts())
	}
}

func TestOneBackendsChangeIsOneNumbers(t *testing.T) {
	p := NewPlan()
	set := func(endpoints ...string) *Delta {
		ports, _ := Ports(service(), []*discovery.EndpointSlice{sliceOf(endpoints...)}, here)
		p.SetService("default/web", ports)
		return p.TakeDelta()
	}
	set("10.244.0.2", "10.244.0.3", "10.244.0.4", "10.244.0.5")
	for _, endpoints := range [][]string{
		{"10.244.0.3", "10.244.0.4", "10.244.0.5", "10.244.0.6"}, // the first replaced
		{"10.244.0.3", "10.244.0.4", "10.244.0.5"},
		{"10.244.0.1", "10.244.0.3", "10.244.0.4", "10.244.0.5"},
		{"10.244.0.1", "10.244.0.4", "10.244.0.5"},
	} {
		for _, c := range set(endpoints...).Groups {
			differ := 0
			for i := range min(len(c.Old.Backends), len(c.New.Backends)) {
				if c.Old.Backends[i] != c.New.Backends[i] {
					differ++
				}
			}
			if differ > 1 {
				t.Errorf("%v became %v", c.Old.Backends, c.New.Backends)
			}
		}
	}
}

func TestSlicesLabelledHeadlessAreLeftToOthers(t *testing.T) {
	labelled := sliceOf("10.244.0.2")
	labelled.Labels[v1.IsHeadlessService] = ""
	ports, faults := Ports(service(), []*discovery.EndpointSlice{labelled, sliceOf("10.244.0.3")}, here)
	if len(faults) > 0 || len(ports[0].Everywhere) != 1 || ports[0].Everywhere[0].Addr().String() != "10.244.0.3" {
		t.Errorf("%+v, %v", ports, faults)
	}
}

func TestNoServiceTakesAnAddressOfOthers(t *testing.T) {
	address := netip.MustParseAddr
	view := here
	view.Reserved = &Reserved{
		Addresses: map[netip.Addr]string{address("192.0.2.1"): "the address of node n1"},
		Host:      []netip.Addr{address("192.0.2.9")}, Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
	}
	all := []string{"192.0.2.1", "192.0.2.9", "10.244.3.3", "10.96.0.99", "203.0.113.1", "169.254.169.254"}
	ports, faults := Ports(service(func(s *v1.Service) {
		s.Spec.ExternalIPs = all
		for _, ip := range all {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: ip})
		}
	}), nil, view)
	if got := fmt.Sprint(ports[0].ExternalIPs); got != "[203.0.113.1]" {
		t.Errorf("external IPs %s", got)
	}
	if got := fmt.Sprint(ports[0].LoadBalancer); got != "[192.0.2.9 203.0.113.1]" {
		t.Errorf("load balancer %s", got)
	}
	text := strings.Join(faults, "; ")
	for _, want := range []string{"spec.externalIPs: 192.0.2.1 is the address of node n1", "status.loadBalancer.ingress: 192.0.2.1", "10.244.3.3 is in the network of pods", "10.96.0.99 is in the network of Services", "192.0.2.9 is an address of node node", "169.254.169.254"} {
		if !strings.Contains(text, want) {
			t.Errorf("faults %q do not say %q", text, want)
		}
	}
}
