// Package replicaset keeps the number of pods a ReplicaSet or a ReplicationController asks for.
//
// It watches ReplicaSets (or ReplicationControllers) and Pods. It creates and deletes pods, adopts and releases them by
// selector, and writes the set's status and events. It never touches a set's spec, nor a pod that another object controls.
//
// Goroutines: the workers of one work loop; one set is reconciled by one of them at a time. Pods of one set are created
// and deleted in parallel within a reconcile, which waits for all of them.
package replicaset
