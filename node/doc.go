// Package node is the agent of one machine: it registers the Node, runs the pods bound to it through a CRI runtime, and
// reports how they are.
//
//	   API server                         CRI runtime (containerd)
//	    │  ▲ status, events,               ▲ calls      │ container events
//	    │  │ Node, Lease                   │            │ (relist when broken)
//	    ▼  │                               │            ▼
//	┌─ Agent ──────────────────────────────┴───────────────────┐
//	│ pods informer ─► podworker (one goroutine a pod)         │
//	│                   spec, observed ─► podloop.Next ─►      │
//	│                   actions; each runs beside the worker   │
//	│                   and reports back into observed         │
//	└──────┬───────────────┬──────────────┬────────────────────┘
//	    volume           probe          cgroup
//
// Around the Agent are packages with one task each: podloop decides (pure), podworker carries out, criconfig translates
// pods for the runtime, cri calls the runtime, images pulls and removes images, admission refuses pods, eviction says which
// pods have to go. This package owns the Node object, its status and Lease, the set of workers, and the housekeeping that no
// event asks for.
//
// Agent.mu guards the set of workers and admission only and is held over no I/O; no lock is taken under it except a worker's
// mailbox lock and that of ContainerDone.
//
// State survives the agent: what is needed to adopt a running container is in its CRI labels and annotations, named as the
// upstream kubelet names them.
package node
