// Package listers owns client-go listers that read the object store directly.
//
// Authorization and admission read a few small objects on every request: a namespace, role bindings, a service account.
// Upstream reads them from informers, which hold a second copy of every object, need to sync at start, and lag behind
// the last write. These listers read the newest applied state, so the next request sees a write at once, and nothing
// has to sync:
//
//	admission plugin ──▶ lister ──▶ Indexer ──▶ Snapshot (an immutable root of the store)
//	                                   │
//	                                   └──▶ decoded objects of small kinds, kept per key and mod revision, bounded
//
// On one of several servers, the applied state may be a moment behind a write that another server has acknowledged. A
// round trip to the leader would slow every request, so only refusals are confirmed: a missing key, a denied request
// (control/auth/authz) and a refused object (control/auth/admission) are checked again on a state with every
// acknowledged write. A request that an older state allows is allowed: a moment ago it was right, and upstream's
// informers are not fresher.
//
// The objects that a lister returns are shared and read-only. Locks: Indexer.mu guards its map of decoded objects, for
// map operations only, never during a decode. No goroutines.
package listers
