// Package snapshot owns what the scheduler believes about nodes and the pods on them.
//
//	informers ──► Cache ◄── assume, forget (scheduler, binder)
//	                │ Refresh: only the nodes that changed
//	                ▼
//	             Snapshot ──► filters and scores (one goroutine)
//
// A Cache is safe for concurrent use; one mutex guards it and nothing is called while it is held. A Snapshot belongs to
// the goroutine that refreshes it: nobody else may read it. Pod values are immutable once made and are shared between
// the cache, the snapshot and the queue.
package snapshot
