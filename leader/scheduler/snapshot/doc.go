// Package snapshot holds the scheduler's state of the nodes and the pods on them.
//
//	informers ──► Cache ◄── assume, forget (scheduler, binder)
//	                │ Refresh: only the nodes that changed
//	                ▼
//	             Snapshot ──► filters and scores (one goroutine)
//
// A Cache is safe for concurrent use; one mutex guards it, and it calls no other package while it holds the mutex. Only the goroutine that
// refreshes a Snapshot may read it. Pod values are immutable and shared between the cache, the snapshot and the queue.
package snapshot
