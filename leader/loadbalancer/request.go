package loadbalancer

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/leader/cloud"
	"github.com/balsahq/balsa/leader/workqueue"
)

// The class, annotations and condition with which Services use pools.
const (
	// Class is the spec.loadBalancerClass of Services that want an address from a pool and from nowhere else.
	Class = "balsa.dev/pool"
	// AddressesAnnotation asks for addresses by name: one, or one of each family with a comma between. It comes before
	// spec.loadBalancerIP, which can name only one.
	AddressesAnnotation = "balsa.dev/load-balancer-ips"
	// Condition tells in a Service's status whether it has its addresses. Nodes announce the addresses of Services that
	// have this condition, and of no others.
	Condition = "balsa.dev/PoolAddress"
)

// requestOf reads what a Service asks for.
func requestOf(svc *v1.Service) request {
	r := request{key: workqueue.KeyOf(svc), created: svc.CreationTimestamp.Time, held: held(svc)}
	optional := svc.Spec.IPFamilyPolicy != nil && *svc.Spec.IPFamilyPolicy == v1.IPFamilyPolicyPreferDualStack
	families := svc.Spec.IPFamilies
	if len(families) == 0 {
		families = []v1.IPFamily{v1.IPv4Protocol}
	}
	for i, f := range families {
		r.want = append(r.want, wish{v4: f != v1.IPv6Protocol, optional: optional && i > 0})
	}
	named, err := wishes(svc)
	if err != nil {
		r.fault = err
		return r
	}
	for _, a := range named {
		found := false
		for i := range r.want {
			if w := &r.want[i]; w.v4 == a.Is4() && !w.address.IsValid() {
				w.address, found = a, true
				break
			}
		}
		if !found {
			r.fault = fmt.Errorf("%s is asked for, and no other of the Service's spec.ipFamilies is left for it: ask for one address of each family the Service has", a)
		}
	}
	return r
}

func wishes(svc *v1.Service) ([]netip.Addr, error) {
	text, where := svc.Annotations[AddressesAnnotation], "annotation "+AddressesAnnotation
	if text == "" {
		text, where = svc.Spec.LoadBalancerIP, "spec.loadBalancerIP"
	}
	var out []netip.Addr
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		a, err := netip.ParseAddr(part)
		if err != nil || a.Zone() != "" {
			return nil, fmt.Errorf("%s: %q is no IP address", where, part)
		}
		out = append(out, a.Unmap())
	}
	return out, nil
}

func held(svc *v1.Service) []netip.Addr {
	var out []netip.Addr
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// outcome is a grant as a Service's status tells it: packets arrive at nodes with the address as their destination.
func (g grant) outcome() cloud.Outcome {
	o := cloud.Outcome{Reason: g.reason, Problem: g.problem}
	for _, a := range g.addresses {
		mode := v1.LoadBalancerIPModeVIP
		o.Ingress = append(o.Ingress, v1.LoadBalancerIngress{IP: a.String(), IPMode: &mode})
	}
	return o
}
