// Package daemonset keeps one pod of a DaemonSet on every node that should have one.
//
// It watches DaemonSets, Pods, Nodes and ControllerRevisions. It creates and deletes the pods its DaemonSets control,
// adopts and releases them by selector, keeps a ControllerRevision per template, and writes the status. It never binds a
// pod: each one names its node by affinity, and the scheduler does the rest. It never touches a Node.
//
// Goroutines: the workers of one work loop; one DaemonSet is reconciled by one of them at a time. The back-off of failed
// pods has its own lock.
package daemonset
