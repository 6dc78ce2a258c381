// Package workqueue owns the one loop every controller of a term runs: a queue of keys, a fixed number of workers, and a
// reconcile function that is retried with back-off until it succeeds.
//
//	informer events ──Watch──▶ queue (one entry per key) ──▶ workers ──▶ reconcile(key)
//	                              ▲                                         │ error
//	                              └─────────── back-off 5 ms … 60 s ◀───────┘
//
// Goroutines: Run starts the workers and the queue's own timer goroutine and joins all of them before it returns. A key
// is never reconciled by two workers at once. The queue has its own lock; this package adds none that is held across a
// call to other code.
package workqueue
