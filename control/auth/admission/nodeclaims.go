package admission

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"

	"k8s.io/apiserver/pkg/admission"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
)

// BalsaNodeClaims keeps a node from writing into its own Node what would redirect the packets of others: an address of
// the API, of a Service, of a load balancer, of a pod or of another node, or a pod network, which only the cluster
// assigns. (NodeRestriction decides which Node a node may write, but not what it writes.)
const nodeClaimsName = "BalsaNodeClaims"

type nodeClaims struct {
	*admission.Handler
	identifier nodeidentifier.NodeIdentifier
	check      func(node string, ips []net.IP) error
}

func (b *builder) registerNodeClaims(plugins *admission.Plugins) {
	plugins.Register(nodeClaimsName, func(io.Reader) (admission.Interface, error) {
		return nodeClaims{admission.NewHandler(admission.Create, admission.Update), nodeidentifier.NewDefaultNodeIdentifier(), b.cfg.CheckNodeIPs}, nil
	})
}

// Validate implements admission.ValidationInterface.
func (p nodeClaims) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	now, ok := a.GetObject().(*api.Node)
	if !ok {
		return nil
	}
	name, is := p.identifier.NodeIdentity(a.GetUserInfo())
	if !is {
		return nil
	}
	before, ok := a.GetOldObject().(*api.Node)
	if !ok {
		before = &api.Node{}
	}
	if !slices.Equal(before.Spec.PodCIDRs, now.Spec.PodCIDRs) {
		return admission.NewForbidden(a, fmt.Errorf("node %q is not allowed to choose its pod network", name))
	}
	claimed := newIPs(before, now)
	if p.check == nil || len(claimed) == 0 {
		return nil
	}
	if err := p.check(name, claimed); err != nil {
		return admission.NewForbidden(a, fmt.Errorf("node %q claims an address: %w", name, err))
	}
	return nil
}

// newIPs returns the addresses that now has and before does not.
func newIPs(before, now *api.Node) (ips []net.IP) {
	for _, a := range now.Status.Addresses {
		if ip := net.ParseIP(a.Address); ip != nil && !slices.ContainsFunc(before.Status.Addresses, func(b api.NodeAddress) bool { return b.Address == a.Address }) {
			ips = append(ips, ip)
		}
	}
	return ips
}
