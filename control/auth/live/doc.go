// Package live owns client-go listers that read the object store itself.
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
// What a lister returns is shared and read-only. Locks: Indexer.mu guards its table of decoded objects, for map
// operations only, never across a decode. No goroutines.
package live
