// Package job runs pods to completion: batch/v1 Jobs, plain and indexed.
//
// It watches Jobs and Pods. It creates and deletes the pods its Jobs control, adopts and releases them by selector, removes
// its tracking finalizer from pods it has counted, and writes the Jobs' status. It never changes a Job's spec, deletes a Job,
// or touches a Job that another controller manages.
//
// A pod that has ended is counted exactly once, however often this process dies in between: its UID goes into the status
// first (uncountedTerminatedPods), then the finalizer comes off the pod, and only when the cache shows the pod without it
// does the UID become part of the count. Every step is decided anew from what is there, so each may be repeated.
//
// Goroutines: the workers of one work loop; one Job is reconciled by one of them at a time. The memory of recent failures
// has a lock of its own.
package job
