package cloud

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
)

// ErrNoInstance means that the provider has no machine for the node.
var ErrNoInstance = errors.New("no such machine")

// Provider is the infrastructure of the cluster's machines. A nil field means that it does not have that function.
type Provider struct {
	Name          string // for messages, and the scheme of provider IDs
	Instances     Instances
	Routes        Routes
	LoadBalancers LoadBalancers
}

// Instances knows the machines that nodes run on.
type Instances interface {
	// Instance describes the node's machine; the error is ErrNoInstance if it no longer exists.
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

// Route is a route to the pods of one node.
type Route struct {
	ID          string // the provider's ID; empty for a new route
	Node        string
	Destination string // a pod network in CIDR form
}

// Routes manages routes to pods in the provider's network. Its methods are called by one goroutine.
type Routes interface {
	List(ctx context.Context) ([]Route, error) // those of this cluster only
	Create(ctx context.Context, r Route) error
	Delete(ctx context.Context, r Route) error
}

// Services is the input of LoadBalancers.Settle.
type Services struct {
	Served  []*v1.Service // Services that should have a load balancer
	Leaving []*v1.Service // Services that were or are being released: addresses in their status may still be in use
	Nodes   []*v1.Node
}

// Outcome is the result of the provider for one Service.
type Outcome struct {
	Ingress []v1.LoadBalancerIngress
	Reason  string // of the condition: one CamelCase word
	Problem error  // why the Service does not get what its spec asks for; nil if it does
}

// LoadBalancers gives Services of type LoadBalancer their addresses. Its methods are called by one goroutine.
type LoadBalancers interface {
	// Condition is the type of the condition that has the outcome of a Service and marks the provider's Services.
	Condition() string
	// Serves reports whether this provider handles a Service of type LoadBalancer. It must return true for Services that
	// have the condition.
	Serves(svc *v1.Service) bool
	// Settle returns the outcome for each of the served Services, in their order. The outcomes of the last call may not have
	// been written when it is called again.
	Settle(ctx context.Context, all Services) []Outcome
	// Release removes the Service's load balancer outside the cluster. It is called until it succeeds.
	Release(ctx context.Context, svc *v1.Service) error
}
