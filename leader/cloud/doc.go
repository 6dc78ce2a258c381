// Package cloud owns the seam between the cluster and whatever gives it machines, routes and addresses: a Provider, and the
// controllers that carry out what it says.
//
//	Provider ── Instances ─────▶ nodes:    spec.providerID, zone and region labels, the taint "uninitialized" taken off;
//	         │                             the end of nodes whose machine is gone, the taint of those that were switched off
//	         ├─ Routes ────────▶ routes:   a way to every node's pods; the condition NetworkUnavailable
//	         └─ LoadBalancers ─▶ services: status.loadBalancer, one condition and the clean-up finalizer of Services
//
// Each of the three may be missing, and then its controller does not run. They are level-triggered: each looks at what is
// there, asks the provider what should be, and writes the difference. The services controller looks at all Services at
// once, because what one gives back another may have waited for.
//
// A Service is taken on by writing the finalizer and the condition together with the first outcome, in one write, and let
// go of in one write, after the provider has released what it held. The condition is the mark by which a Service that was
// taken on is known for as long as it lives, whatever the configuration becomes.
//
// BareMetal is the provider for clusters on bare metal: each node is its own instance. Addresses for its Services come from
// package loadbalancer.
//
// Goroutines: the workers of one work loop a controller; the one of services has a single worker. No locks.
package cloud
