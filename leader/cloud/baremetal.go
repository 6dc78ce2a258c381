package cloud

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// BareMetal returns the provider for bare metal: an instance exists as long as its Node does, and zone and region are the labels
// that the node was given (`--node-label topology.kubernetes.io/zone=…`). lb may be nil.
func BareMetal(lb LoadBalancers) Provider {
	return Provider{Name: "balsa", Instances: ownMachines{}, LoadBalancers: lb}
}

type ownMachines struct{}

// Instance implements Instances.
func (ownMachines) Instance(_ context.Context, node *v1.Node) (Instance, error) {
	return Instance{ProviderID: "balsa://" + node.Name}, nil
}
