package cloud

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// BareMetal returns the provider of machines that nobody rents out: a node is there as long as somebody runs it, and zone
// and region are the labels it was given (`--node-label topology.kubernetes.io/zone=…`). lb may be nil.
func BareMetal(lb LoadBalancers) Provider {
	return Provider{Name: "balsa", Instances: ownMachines{}, LoadBalancers: lb}
}

type ownMachines struct{}

// Instance implements Instances.
func (ownMachines) Instance(_ context.Context, node *v1.Node) (Instance, error) {
	return Instance{ProviderID: "balsa://" + node.Name}, nil
}
