package rest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apiserver/pkg/warning"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// warnOfExternalIPs warns the client about external IPs without effect: nodes forward no packet to a Service if its
// destination is a node or another Service (overlay/services, Reserved). External IPs that the Service had before cause
// no warning.
func (s *Services) warnOfExternalIPs(ctx context.Context, svc, old *api.Service) {
	var fresh []netip.Addr
	for _, text := range svc.Spec.ExternalIPs {
		if a, err := netip.ParseAddr(text); err == nil && (old == nil || !slices.Contains(old.Spec.ExternalIPs, text)) {
			fresh = append(fresh, a.Unmap())
		}
	}
	if len(fresh) == 0 {
		return
	}
	taken := s.nodeAddresses(ctx)
	for _, a := range fresh {
		whose := taken[a]
		if slices.ContainsFunc(s.blocks, func(b block) bool { return b.Contains(a.AsSlice()) }) {
			whose = "in the network of Services"
		}
		if whose != "" {
			warning.AddWarning(ctx, "", fmt.Sprintf("spec.externalIPs: %s is %s; packets to it do not reach this Service", a, whose))
		}
	}
}

// nodeAddresses returns the addresses of all nodes, each with its owner in words. It reads every Node, which is rare
// because few Services get external IPs. If Nodes cannot be read, there is no warning.
func (s *Services) nodeAddresses(ctx context.Context) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	if s.nodes == nil {
		return out
	}
	list, err := s.nodes.List(ctx, &internalversion.ListOptions{})
	nodes, ok := list.(*api.NodeList)
	if err != nil || !ok {
		return out
	}
	for i := range nodes.Items {
		for _, a := range nodes.Items[i].Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil {
				out[ip.Unmap()] = "the address of node " + nodes.Items[i].Name
			}
		}
	}
	return out
}
