// Package scheduler owns the choice of a node for every pod without one.
//
// It watches Pods, Nodes and what pods refer to (claims, volumes, classes, budgets, services and their owners,
// namespaces). It writes the binding of a pod, the PodScheduled condition and nominatedNodeName of a pod it refused,
// the node choice of claims that wait for one, events; and, to make room, the DisruptionTarget condition and the
// deletion of less important pods. It never touches anything else.
//
//	informers ──► cache ──► snapshot ─┐
//	    │                             ▼
//	    └──► queue ──► attempt: filters → scores → assume ──► bind (up to Config.Binders at once)
//	           ▲          │ no node                             │ error
//	           │          ▼                                     ▼
//	           └── refused, back-off ◄── preemption        forget, retry
//
// One goroutine makes attempts, one after the other: it alone owns the snapshot, the tallies and the random source, so a
// seed makes its decisions repeatable. API writes run beside it, at most Config.Binders at once; while that many are
// busy, attempts wait. Informer handlers only touch the cache, the queue and the nominator, which have a mutex each and
// never call one another. With nothing to do, nothing runs: there is no ticker.
package scheduler
