package cloud

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
)

// ErrNoInstance: the provider has no machine for the node.
var ErrNoInstance = errors.New("no such machine")

// Provider is the infrastructure of the cluster's machines. A nil field means that it does not have that function.
type Provider struct {
	Name          string // shown to people, and the scheme of provider IDs
	Instances     Instances
	Routes        Routes
	LoadBalancers LoadBalancers
}

// Instances knows the machines that nodes run on.
type Instances interface {
	// Instance describes the node's machine; ErrNoInstance says that there is none any more.
	Instance(ctx context.Context, node *v1.Node) (Instance, error)
}

// Instance is one machine. For an empty field the Node keeps its value.
type Instance struct {
	ProviderID   string // spec.providerID, as scheme://name
	Type         string // label node.kubernetes.io/instance-type
	Zone, Region string // labels topology.kubernetes.io/zone and …/region
	Labels       map[string]string
	Addresses    []v1.NodeAddress
	Off          bool // it exists, and is switched off
}

// Route leads to the pods of one node.
type Route struct {
	ID          string // the provider's; empty for one to be made
	Node        string
	Destination string // a pod network in CIDR form
}

// Routes makes ways to pods outside the machines themselves. Its methods are called by one goroutine.
type Routes interface {
	List(ctx context.Context) ([]Route, error) // those of this cluster only
	Create(ctx context.Context, r Route) error
	Delete(ctx context.Context, r Route) error
}

// Services is everything a LoadBalancers needs to see at once.
type Services struct {
	Served  []*v1.Service // should have what they ask for
	Leaving []*v1.Service // were let go of, or could not be yet: what their status holds may still be in use
	Nodes   []*v1.Node
}

// Outcome is what a Service should have from now on.
type Outcome struct {
	Ingress []v1.LoadBalancerIngress
	Reason  string // of the condition: one CamelCase word
	Problem error  // why that is not what the Service asks for; nil when it is
}

// LoadBalancers gives Services of type LoadBalancer their addresses. Its methods are called by one goroutine.
type LoadBalancers interface {
	// Condition is the type of the condition that tells a Service's outcome and marks the Services that were taken on.
	Condition() string
	// Serves tells whether a Service of type LoadBalancer is this provider's. It must go on to serve those it has marked.
	Serves(svc *v1.Service) bool
	// Settle returns the outcome for each of the served Services, in their order. The outcomes of the last call may not have
	// been written when it is called again.
	Settle(ctx context.Context, all Services) []Outcome
	// Release removes the Service's load balancer outside the cluster. It is called until it succeeds.
	Release(ctx context.Context, svc *v1.Service) error
}
