// Package statefulset keeps pods with a name of their own: web-0, web-1, and so on, each with its own claims.
//
// It watches StatefulSets, Pods, PersistentVolumeClaims and ControllerRevisions. It creates and deletes the pods its sets
// control, creates their claims and keeps the claims' owner references by the retention policy, keeps a ControllerRevision
// per template, and writes the status. It never deletes a claim: with a retention policy of Delete, the garbage collector
// does.
//
// Goroutines: the workers of one work loop; one set is reconciled by one of them at a time.
package statefulset
