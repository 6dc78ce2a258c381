// Package kubeletapi owns the HTTPS API that every node serves, as the kubelet's: logs, exec, attach, port-forward,
// the pods of the node, statistics and metrics.
//
//	kubectl ─▶ API server ─┐
//	metrics-server, scrapers ┴─ TLS ─▶ authenticate ─▶ authorize ─▶ handler ─┬─▶ Backend: pods, statistics
//	                                        │              │                 ├─▶ log files of the runtime (CRI format)
//	                                   TokenReview   SubjectAccessReview     └─▶ streaming URL that CRI hands out
//
// Exec, attach and port-forward are not spoken here: the runtime is asked for a URL and the upgraded connection is
// passed through to it, SPDY or WebSocket.
//
// Goroutines: those of net/http, one a request. Run ends them all: it cancels their contexts, closes every connection,
// hijacked ones too, and waits. Locks: only the set of open connections has one.
package kubeletapi
