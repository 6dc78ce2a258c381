// Package podloop decides what a node does next for one pod and what the pod's status says.
//
// It is pure: Next and PodStatus are functions of the pod's spec, of what has been observed (Observed) and of the time in
// Observed.Now. The package calls no API server and no runtime, reads no clock and starts no goroutine, so tests run
// whole lives of pods as values. The house rules in arch_test.go keep it so.
//
// Next returns the actions that may begin now, the time to look again, and why each container waits. The caller (the
// pod's worker) carries the actions out, writes what they found into Observed and calls Next again. An action that is
// under way is in Observed.Busy and is not returned a second time, except a stop with a shorter grace period. An action
// that failed leaves a Retry in Observed, and is returned again when that is due.
//
// An Observed belongs to one goroutine; nothing here locks.
package podloop
