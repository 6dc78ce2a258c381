// Package limits bounds how much of this server one client can use: priority and fairness between requests, and limits of a
// single request or client.
//
//	network client ─▶ Short: length of the URL and its selectors ─▶ Paced: how fast the body must come
//	                    ─▶ authenticate ─▶ Connections: the tenant of each ─▶ Watches: streams of one tenant from one address
//	                         ─▶ Fair: flow schema ─▶ priority level ─▶ queue of the flow ─▶ seat
//	                              ─▶ authorize ─▶ Named: namespaces ─▶ Broad: lists and maps ─▶ Nested: schemas in schemas ─▶ handler
//	client in this process ──────────────────────────────────────────────────────────────────────▶ handler
//
// Fair is upstream's API priority and fairness (KEP-1040) with its FlowSchemas and PriorityLevelConfigurations. Added here:
// default objects are restored when they change, by a watch and not by a timer; the number of objects that a list will touch is
// counted in the store when the list comes; and a small body is read before its request takes a seat, so that a slow client
// holds no seat while it sends.
//
// Clients in this process take no seat: they are the cluster's own controllers, whose number is fixed, and a request
// that waits for their work would hold the seat that they need.
//
// Goroutines, joined by Run: upstream's configuration worker and its rebalancing (every 10 s), two informers, the keeper of
// the default objects. Upstream's two end with Run's context but are not waited for. Locks: Counts.mu guards remembered
// counts; Watches.mu the number of streams per client.
package limits
