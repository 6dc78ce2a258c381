// Package rest owns what the API serves beside plain storage: the subresources that do something, and the kinds that
// are never stored.
//
//	             ┌─ writes another view ──▶ binding, eviction, scale          ──▶ registry ──▶ store
//	request ─────┼─ reaches a node ───────▶ log, exec, attach, portforward,
//	             │                          proxy (pods, services, nodes)     ──▶ kubelet API, over TLS of the cluster's CA, by Nodes
//	             ├─ answers and forgets ──▶ token, the five reviews, componentstatuses
//	             └─ Services ─────────────▶ registry ──▶ claims ──▶ store: addresses and ports in the Service's own Txn
//
// Install enters all of it into the table of kinds. A Service's addresses are claimed where the Service is written:
// the storage of Services is wrapped, and every create, update and delete of one carries the claims and releases that
// follow from the object itself, so that "this address belongs to that Service" holds at every revision, without an
// allocator's memory, repair loops, or locks.
//
// No goroutines of its own.
package rest
