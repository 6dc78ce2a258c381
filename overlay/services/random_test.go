package services

import (
	"fmt"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"
)

var someAddresses = rapid.SampledFrom([]string{
	"", "None", "10.96.0.1", "10.96.0.2", "fd00::1", "::ffff:10.0.0.1", "fe80::1%eth0", "127.0.0.1", "0.0.0.0", "255.255.255.255",
	"224.0.0.1", "1.2.3", "10.244.0.2", "10.244.0.3", "fd01::2", "010.1.1.1", "\x00",
})

func pointer[T any](t *rapid.T, g *rapid.Generator[T], label string) *T {
	if rapid.Bool().Draw(t, label+"?") {
		return nil
	}
	v := g.Draw(t, label)
	return &v
}

// drawAny makes a Service as no API server would let pass.
func drawAny(t *rapid.T, name string) *v1.Service {
	port := rapid.SampledFrom([]int32{-1, 0, 1, 80, 443, 65535, 65536, 1 << 30})
	some := rapid.SliceOfN(someAddresses, 0, 3)
	s := service(func(s *v1.Service) { s.Name = name })
	s.Spec.Type = rapid.SampledFrom([]v1.ServiceType{"", v1.ServiceTypeClusterIP, v1.ServiceTypeExternalName, "x"}).Draw(t, "type")
	s.Spec.ClusterIP, s.Spec.ClusterIPs = someAddresses.Draw(t, "ip"), some.Draw(t, "ips")
	s.Spec.ExternalIPs, s.Spec.LoadBalancerSourceRanges = some.Draw(t, "external"), rapid.SliceOfN(rapid.SampledFrom([]string{"10.0.0.0/8", "x", "::/0", "1.2.3.4/33"}), 0, 2).Draw(t, "from")
	for _, ip := range some.Draw(t, "balancer") {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: ip})
	}
	s.Spec.InternalTrafficPolicy = pointer(t, rapid.SampledFrom([]v1.ServiceInternalTrafficPolicy{"Local", "Cluster", "y"}), "internal")
	s.Spec.ExternalTrafficPolicy = rapid.SampledFrom([]v1.ServiceExternalTrafficPolicy{"", "Local", "Cluster"}).Draw(t, "external policy")
	s.Spec.SessionAffinity = rapid.SampledFrom([]v1.ServiceAffinity{"", "ClientIP"}).Draw(t, "affinity")
	s.Spec.SessionAffinityConfig = pointer(t, rapid.Just(v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: pointer(t, port, "timeout")}}), "config")
	s.Spec.Ports = nil
	for range rapid.IntRange(0, 3).Draw(t, "ports") {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{
			Name: rapid.SampledFrom([]string{"", "web"}).Draw(t, "port name"), Port: port.Draw(t, "port"), NodePort: port.Draw(t, "node port"),
			Protocol: rapid.SampledFrom([]v1.Protocol{"", "TCP", "UDP", "SCTP", "z"}).Draw(t, "protocol"),
		})
	}
	return s
}

func drawAnySlice(t *rapid.T, service string) *discovery.EndpointSlice {
	s := sliceOf()
	s.Labels = map[string]string{discovery.LabelServiceName: service}
	s.AddressType = rapid.SampledFrom([]discovery.AddressType{"", "IPv4", "IPv6", "FQDN"}).Draw(t, "family")
	s.Ports = nil
	for range rapid.IntRange(0, 2).Draw(t, "ports") {
		s.Ports = append(s.Ports, discovery.EndpointPort{
			Name: pointer(t, rapid.SampledFrom([]string{"", "web"}), "name"), Port: pointer(t, rapid.SampledFrom([]int32{-5, 0, 8080, 65535, 1 << 20}), "port"),
			Protocol: pointer(t, rapid.SampledFrom([]v1.Protocol{"TCP", "UDP", "w"}), "protocol"),
		})
	}
	for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
		e := discovery.Endpoint{
			Addresses: rapid.SliceOfN(someAddresses, 0, 2).Draw(t, "addresses"), NodeName: pointer(t, rapid.SampledFrom([]string{"", "node"}), "node"),
			Conditions: discovery.EndpointConditions{Ready: pointer(t, rapid.Bool(), "ready"), Serving: pointer(t, rapid.Bool(), "serving"), Terminating: pointer(t, rapid.Bool(), "leaving")},
			Hints:      pointer(t, rapid.Just(discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: "east"}}}), "hints"),
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// TestAnythingComesToAWholeTable draws objects of any content, and checks that nothing panics, that every lead has its
// group with as many backends as its way says and its way is counted, and that nothing is left of what is gone.
func TestAnythingComesToAWholeTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewPlan()
		view := here
		view.V4 = rapid.Bool().Draw(t, "v4")
		for range rapid.IntRange(1, 6).Draw(t, "changes") {
			name := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name")
			var list []*discovery.EndpointSlice
			for range rapid.IntRange(0, 2).Draw(t, "slices") {
				list = append(list, drawAnySlice(t, name))
			}
			ports, _ := Ports(drawAny(t, name), list, view)
			p.SetService(name, ports)
			whole(t, p.Table())
		}
		p.SetService("a", nil)
		p.SetService("b", nil)
		if left := p.Table(); len(left.Services)+len(left.Ports)+len(left.Groups)+len(left.Guards)+len(left.Hairpin) > 0 {
			t.Fatalf("left: %+v", left)
		}
		for w, n := range p.Table().Ways {
			if n != 0 && w.Backends > usualBackends {
				t.Fatalf("left: %+v", w)
			}
		}
	})
}

func whole(t interface{ Fatalf(string, ...any) }, table *Table) {
	check := func(at fmt.Stringer, x Target) {
		for _, l := range []Lead{x.Lead, x.Outside} {
			if !l.HasBackends() {
				continue
			}
			if g := table.Groups[l.Group]; len(g.Backends) != int(l.Way.Backends) || g.Sticky != (l.Way.Sticky > 0) {
				t.Fatalf("%s: lead %+v to group %+v", at, l, g)
			}
			if table.Ways[l.Way] == 0 {
				t.Fatalf("%s: no way %+v", at, l.Way)
			}
		}
		if x.Lead.HasBackends() == (x.Refusal != NoRefusal) {
			t.Fatalf("%s: led and lost, or neither: %+v", at, x)
		}
		if x.Guard != "" && len(table.Guards[x.Guard]) == 0 {
			t.Fatalf("%s: no guard %s", at, x.Guard)
		}
	}
	for at, x := range table.Services {
		check(at, x)
	}
	for at, x := range table.Ports {
		check(at, x)
	}
}

// TestNothingReservedIsTaken draws Services of any content and any reserved addresses: the table leads to a reserved address
// only where it is some Service's cluster IP, which the API gives out.
func TestNothingReservedIsTaken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, view := NewPlan(), here
		view.V4 = rapid.Bool().Draw(t, "v4")
		view.Services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/108")}
		view.Reserved = &Reserved{Addresses: map[netip.Addr]string{}, Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10::/48")}}
		for _, text := range rapid.SliceOfN(someAddresses, 0, 4).Draw(t, "reserved") {
			if a, err := netip.ParseAddr(text); err == nil {
				view.Reserved.Addresses[a.Unmap()] = "somebody's"
			}
		}
		given := map[netip.Addr]bool{}
		for _, name := range []string{"a", "b"} {
			svc := drawAny(t, name)
			ports, _ := Ports(svc, []*discovery.EndpointSlice{drawAnySlice(t, name)}, view)
			p.SetService("default/"+name, ports)
			for _, text := range append(svc.Spec.ClusterIPs, svc.Spec.ClusterIP) {
				if a, err := netip.ParseAddr(text); err == nil {
					given[a.Unmap()] = true
				}
			}
		}
		for at := range p.Table().Services {
			if !given[at.IP] && view.reservedFor(at.IP) != "" {
				t.Fatalf("%v is led to a Service although it is %s", at, view.reservedFor(at.IP))
			}
		}
	})
}
