package servicecidr

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	finalizer = "networking.k8s.io/service-cidr-finalizer"
	// grace is how long an unused network stays after its deletion was asked for, as upstream's: a server that has not
	// heard of the deletion yet may still be giving away an address of it.
	grace = 10 * time.Second
	// reasonOverlaps is the reason of a network that does not become ready.
	reasonOverlaps = "AddressesInUse"
)

// cluster is the state of the cluster on which the decision about one ServiceCIDR depends.
type cluster struct {
	pods     []netip.Prefix              // the pods' networks
	nodes    []*v1.Node                  // whose addresses are not to be Services'
	services []*v1.Service               // which hold addresses
	cidrs    []*networkingv1.ServiceCIDR // all of them
}

// verdict is the action to take on a ServiceCIDR.
type verdict struct {
	ready   *metav1.Condition // to be set where it differs; nil: leave it
	release bool              // take the finalizer off
	again   time.Duration     // look again after this long; 0: when something changes
}

// judge decides about one ServiceCIDR.
func judge(c *networkingv1.ServiceCIDR, in cluster, now time.Time) verdict {
	if c.DeletionTimestamp == nil {
		return verdict{ready: readiness(c, in)}
	}
	if svc := in.orphan(c); svc != "" {
		return verdict{ready: &metav1.Condition{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionFalse, Reason: networkingv1.ServiceCIDRReasonTerminating,
			Message: fmt.Sprintf("There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR; one is of Service %s", svc),
		}}
	}
	if left := grace - now.Sub(c.DeletionTimestamp.Time); left > 0 {
		return verdict{again: left}
	}
	return verdict{release: true}
}

// readiness returns the Ready condition of a ServiceCIDR that is not being deleted. A ready ServiceCIDR stays ready: if a
// node joins with an address in it, the node is at fault.
func readiness(c *networkingv1.ServiceCIDR, in cluster) *metav1.Condition {
	ready := &metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Message: "Kubernetes Service CIDR is ready",
	}
	if meta.IsStatusConditionTrue(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
		return ready
	}
	if fault := in.overlap(prefixesOf(c)); fault != "" {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reasonOverlaps, fault
	}
	return ready
}

// overlap names the object with whose addresses the networks overlap; "" when there is none.
func (in cluster) overlap(networks []netip.Prefix) string {
	for _, p := range networks {
		for _, pods := range in.pods {
			if p.Overlaps(pods) {
				return fmt.Sprintf("%s overlaps the pods' network %s: delete this ServiceCIDR and create one with other addresses", p, pods)
			}
		}
		for _, node := range in.nodes {
			for _, a := range node.Status.Addresses {
				if ip, err := netip.ParseAddr(a.Address); err == nil && p.Contains(ip.Unmap()) {
					return fmt.Sprintf("%s holds the address %s of node %s: delete this ServiceCIDR and create one with other addresses", p, ip, node.Name)
				}
			}
		}
	}
	return ""
}

// orphan names a Service with an address that c alone holds, "" when there is none.
func (in cluster) orphan(c *networkingv1.ServiceCIDR) string {
	mine := prefixesOf(c)
	var others []netip.Prefix
	for _, o := range in.cidrs {
		if o.Name != c.Name && o.DeletionTimestamp == nil && meta.IsStatusConditionTrue(o.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
			others = append(others, prefixesOf(o)...)
		}
	}
	for _, svc := range in.services {
		for _, text := range svc.Spec.ClusterIPs {
			if ip, err := netip.ParseAddr(text); err == nil && holds(mine, ip) && !holds(others, ip) {
				return svc.Namespace + "/" + svc.Name
			}
		}
	}
	return ""
}

func holds(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// prefixesOf are the networks of a ServiceCIDR; validation lets none through that does not parse.
func prefixesOf(c *networkingv1.ServiceCIDR) (list []netip.Prefix) {
	for _, text := range c.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			list = append(list, p.Masked())
		}
	}
	return list
}
