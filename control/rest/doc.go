// Package rest owns the parts of the API that are more than storage: the subresources with an effect, and the kinds
// that are never stored.
//
//	             ┌─ writes another view ──▶ binding, eviction, scale          ──▶ registry ──▶ store
//	request ─────┼─ reaches a node ───────▶ log, exec, attach, portforward,
//	             │                          proxy (pods, services, nodes)     ──▶ kubelet API, over TLS of the cluster's CA, by Nodes
//	             ├─ answers and forgets ──▶ token, the five reviews, componentstatuses
//	             └─ Services ─────────────▶ registry ──▶ claims ──▶ store: addresses and ports in the Service's own Txn
//
// Install adds all endpoints to the table of kinds. The storage of Services is wrapped: every create, update and delete
// of a Service carries, in its own Txn, the claims and releases of addresses that follow from the object. So "this
// address belongs to that Service" holds at every revision, without an allocator's memory, repair loops or locks.
//
// The package starts no goroutines.
package rest
