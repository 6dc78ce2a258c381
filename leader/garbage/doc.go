// Package garbage deletes objects whose owners are gone, and carries out the foreground and orphan ways of deleting.
//
// It watches the metadata of every kind that can be listed, watched and deleted, custom ones included, and writes only
// metadata: it deletes dependents, removes owner references that lead nowhere, and removes the finalizers orphan and
// foregroundDeletion when their work is done. It never touches a spec or a status, and never deletes an object that has
// an owner left.
//
//	discovery ──▶ sources: one watch a kind ──▶ graph of ownership ─────▶ queue of UIDs ──▶ decide (pure) ──▶ API
//	                 ▲                                                                         │
//	                 └──── a CustomResourceDefinition or APIService changed ◀── graph          └─ owner not in the graph:
//	                                                                                              ask the API before believing it
//
// The graph holds what it needs of each object, a hundred bytes or so, and is the only copy: kinds that no other
// controller watches have no informer cache. The graph is trusted that an owner exists, because its deletion will be seen. That an
// owner is gone is always confirmed by the API, or was seen as a deletion of its UID.
//
// Goroutines: the workers of one work loop, one a kind (a reflector, unless another controller watches the kind anyway and
// its informer is shared), and one that starts and stops those. The graph
// has one lock, held for the time of a lookup or an update and never during a request.
package garbage
