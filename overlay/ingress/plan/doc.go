// Package plan owns what Ingress and Gateway API objects mean: it turns them into the ports to listen on, the certificates
// to show, the rules of each port with their targets, and what has to be said about the objects. It is pure: the same
// objects give the same plan, on every node and where the status is written.
//
//	Ingress, IngressClass ─────────────┐            ┌─► Ports: certificates by name, rules (package route) ─► package proxy
//	Gateway, HTTPRoute, GRPCRoute, … ──┼──► Build ──┼─► Secrets, Backends: what the plan needs to know about
//	Services, certificates (asked for) ┘            ├─► Problems: Events on the objects
//	                                                └─► Conditions of Gateways and routes
//
// Ingresses share the ports Config.HTTPPort and Config.HTTPSPort; a Gateway's listeners on port 80 and 443 mean these two,
// its other ports are themselves. All Gateways share the nodes' addresses, so listeners of several Gateways with one port
// and one hostname are one: their routes are merged by the order of precedence. Among a Gateway's route and an Ingress'
// rule for the same request the one with the more specific host wins, then the Gateway's.
//
// No goroutines, no locks. A Plan is read-only once made.
package plan
