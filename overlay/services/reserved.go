package services

import (
	"net/netip"
	"slices"
)

// Reserved are addresses that no Service can claim with its externalIPs or its load balancer status. Otherwise a user that
// may write Services of one namespace could get the packets that all pods send to a node or to the API (CVE-2020-8554). The
// networks of Services are in View.
type Reserved struct {
	Addresses map[netip.Addr]string // to a description of the owner, for messages
	// Host are addresses on links of this host. They are refused in externalIPs only, because programs that announce load
	// balancers may put the load balancers' addresses on links.
	Host []netip.Addr
	Pods []netip.Prefix
}

// Equal tells whether both reserve the same addresses for the same owners.
func (r *Reserved) Equal(other *Reserved) bool {
	if r == nil || other == nil {
		return r == other
	}
	if len(r.Addresses) != len(other.Addresses) || !slices.Equal(r.Host, other.Host) || !slices.Equal(r.Pods, other.Pods) {
		return false
	}
	for a, whose := range r.Addresses {
		if got, ok := other.Addresses[a]; !ok || got != whose {
			return false
		}
	}
	return true
}

// reservedFor returns a description of the address's owner; "" if a Service may have the address.
func (v *View) reservedFor(a netip.Addr) string {
	inside := func(p netip.Prefix) bool { return p.Contains(a) }
	switch {
	case slices.ContainsFunc(v.Services, inside):
		return "in the network of Services"
	case v.Reserved == nil:
		return ""
	case slices.ContainsFunc(v.Reserved.Pods, inside):
		return "in the network of pods"
	}
	return v.Reserved.Addresses[a]
}

// external returns a Service's addresses of the family for clients outside the cluster; field names their API field in
// faults. It leaves out reserved addresses and reports them as faults.
func (v *View) external(field string, ips []string, note faultList) []netip.Addr {
	return slices.DeleteFunc(family(ips, v.V4, note), func(a netip.Addr) bool {
		whose := v.reservedFor(a)
		if whose == "" && field == externalIPs && v.Reserved != nil && slices.Contains(v.Reserved.Host, a) {
			whose = "an address of node " + v.Node
		}
		if whose != "" {
			note.add("%s: %s is %s; this Service gets no packets to it", field, a, whose)
		}
		return whose != ""
	})
}

const (
	externalIPs  = "spec.externalIPs"
	balancersIPs = "status.loadBalancer.ingress"
)
