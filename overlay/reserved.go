package overlay

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/balsahq/balsa/overlay/routes"
	"github.com/balsahq/balsa/overlay/services"
)

// apiService is the Service whose endpoints are the API servers.
const apiService = "default/kubernetes"

// updateReserved computes the addresses that Services may not claim. If they changed, Services with addresses for clients
// outside the cluster are planned again.
func (e *engine) updateReserved(nodes []*v1.Node, facts routes.Facts) {
	now := &services.Reserved{Addresses: make(map[netip.Addr]string), Pods: e.cfg.PodCIDRs}
	for _, a := range e.cfg.Reserved {
		now.Addresses[a.Unmap()] = "an address of this cluster's API"
	}
	for _, slice := range slicesOf(e.slices, apiService) {
		for i := range slice.Endpoints {
			for _, text := range slice.Endpoints[i].Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					now.Addresses[a.Unmap()] = "the address of a server"
				}
			}
		}
	}
	for _, node := range nodes {
		for _, a := range node.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil {
				now.Addresses[ip.Unmap()] = "the address of node " + node.Name
			}
		}
	}
	for _, link := range facts.Links {
		now.Host = append(now.Host, link.Addresses...)
	}
	slices.SortFunc(now.Host, netip.Addr.Compare)
	if now.Equal(e.reserved) {
		return
	}
	e.reserved = now
	for _, p := range e.proxies {
		p.view.Reserved = now
	}
	services, _ := e.services.List(labels.Everything()) // a cache's list never fails
	for _, svc := range services {
		if len(svc.Spec.ExternalIPs)+len(svc.Status.LoadBalancer.Ingress) > 0 {
			e.markService(svc.Namespace, svc.Name)
		}
	}
}
