// Package plan turns Ingress and Gateway API objects into a plan: the ports to listen on, the certificates, the rules of
// each port with their targets, and the conditions and Events of the objects. It is pure: the same objects give the same
// plan, on every node and where the status is written.
//
//	Ingress, IngressClass ─────────────┐            ┌─► Ports: certificates by name, rules (package route) ─► package proxy
//	Gateway, HTTPRoute, GRPCRoute, … ──┼──► Build ──┼─► Secrets, Backends: what the plan needs to know about
//	Services, certificates (asked for) ┘            ├─► Problems: Events on the objects
//	                                                └─► Conditions of Gateways and routes
//
// Ingresses share the ports Config.HTTPPort and Config.HTTPSPort; a Gateway's listeners with port 80 and 443 use these two,
// other listeners use their own port. All Gateways share the nodes' addresses, so listeners of several Gateways with one
// port and one hostname are one: their routes are merged by the order of precedence. If a Gateway's route and an Ingress's
// rule match the same request, the more specific host wins; with equal hosts the Gateway wins.
//
// No goroutines, no locks. A Plan is read-only once made.
package plan
