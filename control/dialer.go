package control

import (
	"context"
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"

	"github.com/balsahq/balsa/control/rest"
)

// This file says how the server reaches nodes, pods and Services where it has a Tunnel.

// nodes returns the dialer for nodes; nil: the server dials directly.
func (s *Server) nodes() rest.Nodes {
	if s.cfg.Tunnel == nil {
		return nil
	}
	return s.cfg.Tunnel
}

// dial connects to pods and Services, through the tunnel if there is one.
func (s *Server) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return s.cfg.Tunnel.Cluster(ctx, network, address, s.nodesNear)
}

// nodesNear returns the nodes with an endpoint of the Service that has the address, or the node whose pod network contains
// it.
func (s *Server) nodesNear(_ context.Context, a netip.Addr) []string {
	namespace, name, ok := rest.ServiceAt(s.cfg.Store.View(), a)
	if !ok {
		return s.nodeOfPodAddress(a)
	}
	lister := discoverylisters.NewEndpointSliceLister(s.access.live.Fresh(schema.GroupResource{Group: discoveryv1.GroupName, Resource: "endpointslices"}))
	list, err := lister.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: name}))
	if err != nil {
		return nil // any node will do
	}
	return endpointNodes(list)
}

// endpointNodes are the nodes of ready endpoints.
func endpointNodes(list []*discoveryv1.EndpointSlice) (nodes []string) {
	for _, slice := range list {
		for _, e := range slice.Endpoints {
			ready := e.Conditions.Ready == nil || *e.Conditions.Ready
			if ready && e.NodeName != nil && !slices.Contains(nodes, *e.NodeName) {
				nodes = append(nodes, *e.NodeName)
			}
		}
	}
	return nodes
}

// nodeOfPodAddress returns the node whose pod network contains the address.
func (s *Server) nodeOfPodAddress(a netip.Addr) []string {
	list, err := corelisters.NewNodeLister(s.access.live.Fresh(schema.GroupResource{Resource: "nodes"})).List(labels.Everything())
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(list, func(n *corev1.Node) bool {
		return slices.ContainsFunc(n.Spec.PodCIDRs, func(text string) bool {
			p, err := netip.ParsePrefix(text)
			return err == nil && p.Contains(a)
		})
	})
	if i < 0 {
		return nil
	}
	return []string{list[i].Name}
}
