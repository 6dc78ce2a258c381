// Package healthport answers the health checks of external load balancers: whether a Service with externalTrafficPolicy Local has
// an endpoint on this node (spec.healthCheckNodePort, KEP-1669), and whether the node takes packets at all (port 10256, as
// kube-proxy does).
//
//	load balancer ──GET──▶ :healthCheckNodePort ──▶ 200 with, 503 without a ready endpoint on this node
//	              ──GET──▶ :10256/healthz ────────▶ 200 while Services are routed and the node stays
//	                       :10256/livez ──────────▶ 200 while Services are routed
//	program of the node ─▶ 127.0.0.1:10249/proxyMode ▶ nftables
//
// The port of a Service is open while the Service needs it; a port that another program has is tried again. The connections
// of a server are bounded in number and duration.
//
// Goroutines: Run's own, which opens and closes ports, and those of one HTTP server per port. One lock guards the changes
// that handlers of the informers leave for Run's goroutine; HTTP handlers read an atomic number.
package healthport
