// Package limits owns how much of this server one client can have: priority and fairness between requests, and bounds on what
// a single request or client may hold.
//
//	network client ─▶ Short: length of the URL and its selectors ─▶ Paced: how fast the body must come
//	                    ─▶ authenticate ─▶ Connections: whose they are ─▶ Watches: streams of one tenant from one address
//	                         ─▶ Fair: flow schema ─▶ priority level ─▶ queue of the flow ─▶ seat
//	                              ─▶ authorize ─▶ Named: namespaces ─▶ Broad: lists and maps ─▶ Nested: schemas in schemas ─▶ handler
//	client in this process ──────────────────────────────────────────────────────────────────────▶ handler
//
// Fair is upstream's API priority and fairness (KEP-1040) with its FlowSchemas and PriorityLevelConfigurations. What is
// added: the objects every cluster has are put back when they change, by their watch and not by the clock; the number of
// objects a list will touch is counted in the store when a list asks; and a small body is read before its request takes a
// seat, so that a slow client waits at its own expense.
//
// Clients in this process take no seat: they are the cluster's own controllers, whose number the code knows, and a request
// that waits for what they do would hold the seat they need.
//
// Goroutines, joined by Run: upstream's configuration worker and its rebalancing (every 10 s), two informers, the keeper of
// the default objects. Upstream's two end with Run's context but are not waited for. Locks: Counts.mu guards remembered
// counts; Watches.mu the number of streams per client.
package limits
