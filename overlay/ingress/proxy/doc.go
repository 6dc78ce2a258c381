// Package proxy owns the HTTP ports of one node: it listens where a plan says, finds each request's rule, and carries it to
// an endpoint of a Service and the answer back. It knows no Kubernetes objects beyond the names in a plan.Plan.
//
//	client ─► guard (limits) ─► http.Server ─► entry.ServeHTTP ─► rule ─► ReverseProxy ─► carrier ─► pool ─► endpoint
//	                                                │                                       (retries)
//	plan.Plan ─► Proxy.Apply ─► entry.plan (atomic) ┘          endpoints ─► Proxy.SetEndpoints ─► pool (atomic)
//
// A change of the plan swaps one pointer per port: requests that have found their rule go on with it, the next ones see the
// new rules, and no connection notices. Certificates are read through the same pointer. A port that is no longer wanted
// stops taking connections and lets its requests end, as long as Config.Drain says. An endpoint that is gone gets no new
// requests; those it has, it keeps.
//
// Goroutines: one per port that accepts, those of net/http per connection, one per mirrored request, one per port that
// drains. Apply, SetEndpoints and Close are for one goroutine, the engine's; everything that requests read is immutable or
// atomic. Close joins all of them.
package proxy
