// Package listers owns client-go listers that read the object store itself.
//
// Authorization and admission ask the same small questions on every request: this namespace, those role bindings,
// that service account. Upstream answers from informers, which hold a second copy of every object, need a start-up
// sync, and lag behind the last write. Here the answer comes from the newest applied state, so a write is seen by the
// very next request and nothing has to sync:
//
//	admission plugin ──▶ lister ──▶ Indexer ──▶ Snapshot (an immutable root of the store)
//	                                   │
//	                                   └──▶ decoded objects of small kinds, kept per key and mod revision, bounded
//
// On one of several servers the applied state may be a moment behind what another server has acknowledged. Asking the
// leader each time would cost every request a round trip, so only a refusal is confirmed: a key that is not there, a
// denied request (control/auth/authz), a refused object (control/auth/admission) is looked at once more in a state that
// holds everything acknowledged before. What is allowed by a state a moment old was allowed a moment ago; upstream's
// informers are no fresher.
//
// What a lister returns is shared and read-only. Locks: Indexer.mu guards its table of decoded objects, for map
// operations only, never across a decode. No goroutines.
package listers
