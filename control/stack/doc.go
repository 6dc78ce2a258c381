// Package stack owns how the goroutines of a request come to the stack that they need: in one step, at their beginning.
//
// Go starts a goroutine with a small stack and doubles it whenever a call does not fit, by copying what is there and
// correcting every pointer into it. A request of the API is answered by three goroutines that live for a millisecond, and
// each of them would do so two or three times, deep in its work: a tenth of what a write costs. Stacks up to 32 KiB come
// from a pool of the processor and are cheap to take and to give back.
package stack
