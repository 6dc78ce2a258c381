package routing

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
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
func lead(t *Table, chain string, lost Fate, isLost bool, from string) string {
	if chain == "" {
		if !isLost {
			return "nothing"
		}
		return map[Fate]string{Reject: "reject", Drop: "drop"}[lost]
	}
	out := ""
	source := netip.MustParseAddr(map[string]string{"pod": "10.244.0.5", "node": "192.0.2.1", "outside": "203.0.113.9"}[from])
	for _, r := range t.Chains[chain] {
		if r.FromLocal && from != "node" || len(r.From) > 0 && !slices.ContainsFunc(r.From, func(p netip.Prefix) bool { return p.Contains(source) }) {
			continue
		}
		switch {
		case r.Mark:
			out += "mark "
		case r.Drop:
			return out + "drop"
		case r.Goto != "":
			return out + lead(t, r.Goto, lost, isLost, from)
		default:
			return out + fmt.Sprintf("to %v", r.Balance)
		}
	}
	if isLost {
		return out + lead(t, "", lost, true, from)
	}
	return out + "nothing"
}

func (t *Table) leadAddress(a, from string) string {
	p := netip.MustParseAddrPort(a)
	at := Address{p.Addr(), TCP, p.Port()}
	lost, isLost := t.Nobody[at]
	return lead(t, t.Services[at], lost, isLost, from)
}

func (t *Table) leadPort(port uint16, from string) string {
	at := NodePort{TCP, port}
	lost, isLost := t.NobodyAtPort[at]
	return lead(t, t.NodePorts[at], lost, isLost, from)
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
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			table := Build(Services([]*v1.Service{c.svc}, []*discovery.EndpointSlice{sliceOf(c.endpoints...)}, "node", true), nil, pods)
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
	both := []*discovery.EndpointSlice{sliceOf("10.244.0.2"), six}
	v6 := Services([]*v1.Service{service()}, both, "node", false)
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
	table := Build(Services([]*v1.Service{sticky}, []*discovery.EndpointSlice{sliceOf("10.244.0.2", "10.244.0.3")}, "node", true), nil, nil)
	if len(table.Affinity) != 1 {
		t.Fatalf("affinity maps: %v", table.Affinity)
	}
	for name, a := range table.Affinity {
		if a.Timeout != 30*time.Second || len(a.Backends) != 2 {
			t.Errorf("%s: %+v", name, a)
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
	build := func(endpoints ...string) *Table {
		s := sliceOf(endpoints...)
		protocol := v1.ProtocolUDP
		s.Ports[0].Protocol = &protocol
		return Build(Services([]*v1.Service{udp}, []*discovery.EndpointSlice{s}, "node", true), nil, nil)
	}
	if got := StaleFlows(build("10.244.0.2", "10.244.0.3"), build("10.244.0.3")); len(got) != 2 {
		t.Errorf("a backend gone: %v, want its cluster address and its node port", got)
	}
	if got := StaleFlows(build(), build("10.244.0.3")); len(got) != 2 || got[0].Backend.IsValid() {
		t.Errorf("the first backend: %v", got)
	}
	if got := StaleFlows(build("10.244.0.3"), build("10.244.0.3")); len(got) != 0 {
		t.Errorf("nothing changed: %v", got)
	}
}

// TestTablesAreWhole checks of random services that no map or rule leads to a chain that is not there, that no chain is
// never reached, and that every destination leads somewhere or is known to lead nowhere.
func TestTablesAreWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var services []*v1.Service
		var slices []*discovery.EndpointSlice
		for i := range rapid.IntRange(0, 8).Draw(t, "services") {
			local := v1.ServiceInternalTrafficPolicyLocal
			svc := service(func(s *v1.Service) {
				s.Name = fmt.Sprintf("s%d", i)
				s.Spec.ClusterIPs = []string{fmt.Sprintf("10.96.0.%d", i+1)}
				s.Spec.Ports[0].NodePort = int32(30000 + i)
				if rapid.Bool().Draw(t, "internal local") {
					s.Spec.InternalTrafficPolicy = &local
				}
				if rapid.Bool().Draw(t, "external local") {
					s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
				}
				if rapid.Bool().Draw(t, "sticky") {
					s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
				}
			})
			services = append(services, svc)
			endpoints := rapid.SliceOf(rapid.SampledFrom([]string{"10.244.0.2 here", "10.244.0.3 here unready", "10.244.1.2", "10.244.1.3 leaving"})).Draw(t, "endpoints")
			s := sliceOf(endpoints...)
			s.Labels[discovery.LabelServiceName] = svc.Name
			slices = append(slices, s)
		}
		table := Build(Services(services, slices, "node", true), nil, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")})
		reached := map[string]bool{}
		var reach func(string)
		reach = func(chain string) {
			rules, ok := table.Chains[chain]
			if !ok {
				t.Fatalf("chain %s is not there", chain)
			}
			reached[chain] = true
			for _, r := range rules {
				if r.Goto != "" {
					reach(r.Goto)
				}
				if _, ok := table.Affinity[r.Sticky]; r.Sticky != "" && !ok {
					t.Fatalf("affinity map %s is not there", r.Sticky)
				}
			}
		}
		for _, chain := range table.Services {
			reach(chain)
		}
		for _, chain := range table.NodePorts {
			reach(chain)
		}
		for i := range services {
			at := Address{netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", i+1)), TCP, 80}
			_, led := table.Services[at]
			if _, lost := table.Nobody[at]; led == lost {
				t.Fatalf("%v: led %t, lost %t", at, led, lost)
			}
		}
	})
}
