// Package namespace empties and finishes namespaces that are being deleted.
//
// It watches Namespaces, and Pods to learn when the last of an ending namespace is gone. It deletes everything inside,
// whatever its kind, as discovery tells it; writes the namespace's conditions; and removes the "kubernetes" finalizer when
// nothing is left. It never changes a namespace that is not being deleted, nor another finalizer.
//
//	ending namespace ─▶ discovery: which kinds ─▶ pods first ─▶ all else ─▶ anything left? ─yes▶ conditions, look again
//	                                                                                └─no─▶ finalize
//
// Goroutines: the workers of one work loop.
package namespace
