// Package proxy is the HTTP proxy of one node. It listens on the ports of a plan, finds each request's rule, and forwards
// the request to an endpoint of a Service. It knows no Kubernetes objects except for the names in a plan.Plan.
//
//	client ─► guard (limits) ─► http.Server ─► entry.ServeHTTP ─► rule ─► ReverseProxy ─► carrier ─► pool ─► endpoint
//	                                                │                                       (retries)
//	plan.Plan ─► Proxy.Apply ─► entry.plan (atomic) ┘          endpoints ─► Proxy.SetEndpoints ─► pool (atomic)
//
// A change of the plan swaps one pointer per port: running requests keep their rule, later requests see the new rules, and
// connections stay open. Certificates are read through the same pointer. A port that is no longer wanted accepts no more
// connections, and its requests have Config.Drain to end. An endpoint that is gone gets no new requests and keeps those
// that it has.
//
// Goroutines: one per port that accepts, those of net/http per connection, one per mirrored request, one per port that
// drains. Apply, SetEndpoints and Close are for one goroutine, the engine's; everything that requests read is immutable or
// atomic. Close joins all of them.
package proxy
