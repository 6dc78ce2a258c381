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

// warnOfExternalIPs tells the writer of a Service about external IPs that have no effect: nodes lead no packet to a Service
// that is for a node or for another Service (overlay/services, Reserved). Those that were there before are not told again.
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
			warning.AddWarning(ctx, "", fmt.Sprintf("spec.externalIPs: %s is %s; packets to it are not led to this Service", a, whose))
		}
	}
}

// nodeAddresses are the addresses of all nodes, and whose each is. It reads every Node, for the few Services that get
// external IPs; where Nodes cannot be read, nobody is warned.
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
