// Package cloud defines the interface to the infrastructure that gives the cluster machines, routes and addresses, a
// Provider, and has the controllers that apply a provider's answers.
//
//	Provider ── Instances ─────▶ nodes:    spec.providerID, zone and region labels, the taint "uninitialized" taken off;
//	         │                             the end of nodes whose machine is gone, the taint of those that were switched off
//	         ├─ Routes ────────▶ routes:   a route to every node's pods; the condition NetworkUnavailable
//	         └─ LoadBalancers ─▶ services: status.loadBalancer, one condition and the clean-up finalizer of Services
//
// Each of the three may be missing, and then its controller does not run. They are level-triggered: each compares the
// current state with the provider's answer and writes the difference. The services controller reconciles all Services
// together, because one Service may wait for an address that another one releases.
//
// One write adds the finalizer, the condition and the first outcome to a Service; one write removes them, after the
// provider has released the load balancer. The condition marks the Services of a provider for as long as they exist, even
// if the configuration changes.
//
// BareMetal is the provider for clusters on bare metal: each node is its own instance. Addresses for its Services come from
// package loadbalancer.
//
// Goroutines: the workers of one work loop a controller; the one of services has a single worker. No locks.
package cloud
