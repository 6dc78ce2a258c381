// Package node owns the pods of one machine: it registers the Node, runs what
// is bound to it through a CRI runtime, and reports what is.
//
//	  API server                         CRI runtime (containerd)
//	   │  ▲ status, events,               ▲ calls      │ container events
//	   │  │ Node, Lease                   │            │ (relist when broken)
//	   ▼  │                               │            ▼
//	┌─ Agent ─────────────────────────────┴────────────────────┐
//	│ pods informer ─► worker (one goroutine a pod)            │
//	│                   spec, observed ─► next() ─► actions    │
//	│                   each action runs beside the worker and │
//	│                   reports back into observed             │
//	└──────┬───────────────┬──────────────┬────────────────────┘
//	    volume           probe          cgroup
//
// The decision is next in pod.go: a function of the pod's spec and of what has
// been observed, which returns what to do now and when to look again. It does
// no I/O and reads no clock. Everything that takes time (a pull, a sandbox, a
// stop with its grace period) is an operation beside the worker, so a deletion
// is acted on while an image is still being pulled.
//
// Goroutines: the worker of a pod is the only writer of that pod's state;
// operations and runtime events hand it closures through its mailbox. Readers
// (the kubelet API, statistics) see immutable snapshots that the worker
// publishes. Agent.mu guards the map of workers and admission only and is held
// over no I/O; no lock is taken under it except a worker's mailbox lock.
//
// State survives the agent: what is needed to adopt a running container stands
// in its CRI labels and annotations, named as the upstream kubelet names them.
package node
