// Package scheduler chooses a node for every pod without one.
//
// It watches Pods, Nodes and the objects that pods refer to (claims, volumes, classes, budgets, services and their owners,
// namespaces, ResourceClaims, ResourceSlices and DeviceClasses). It writes the binding of a pod, the devices that its ResourceClaims get and their reservation for it, a
// claim for its extended resources where a DeviceClass stands for them, the PodScheduled condition and nominatedNodeName of a pod that fits no node,
// the selected node of claims that wait for one, and events. To make room it writes the DisruptionTarget condition of pods with a
// lower priority and deletes them. It writes nothing else.
//
//	informers ──► cache ──► snapshot ─┐
//	    │                             ▼
//	    └──► queue ──► attempt: filters → scores → assume ──► bind (up to Settings.Binders at once)
//	           ▲          │ no node                             │ error
//	           │          ▼                                     ▼
//	           └── refused, back-off ◄── preemption        forget, retry
//
// One goroutine makes attempts, one after the other. It alone uses the snapshot, the indexes and the random source, so a seed makes
// its decisions repeatable. API writes run beside it, at most Settings.Binders at once; while that many are under way, attempts wait.
// Informer handlers only use the cache, the queue and the nominator, which have a mutex each and never call one another. There is
// no ticker: without events and due pods nothing runs.
package scheduler
