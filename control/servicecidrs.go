package control

import (
	"net"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
)

// readyServiceCIDRs are the networks of ServiceCIDRs that are ready and stay, ordered by the objects' names. The controller
// of ServiceCIDRs (leader/servicecidr) says which are ready.
func (s *Server) readyServiceCIDRs() (list []*net.IPNet) {
	objects, err := networkinglisters.NewServiceCIDRLister(s.access.live.Kept(schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"})).List(labels.Everything())
	if err != nil {
		s.log.Warn("cannot read ServiceCIDRs; Services get addresses of --service-cidr alone", "err", err)
	}
	slices.SortFunc(objects, func(a, b *networkingv1.ServiceCIDR) int { return strings.Compare(a.Name, b.Name) })
	for _, o := range objects {
		if o.DeletionTimestamp != nil || !meta.IsStatusConditionTrue(o.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
			continue
		}
		for _, text := range o.Spec.CIDRs {
			if _, network, err := net.ParseCIDR(text); err == nil {
				list = append(list, network)
			}
		}
	}
	return list
}
