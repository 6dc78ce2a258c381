// Package probe owns the health checks of containers: when each startup, readiness and liveness probe runs, what it
// asks, and when its answer counts.
//
//	agent ── Start(Target), Stop ──▶ Manager ── one goroutine a probe ──▶ exec, HTTP, TCP or gRPC in the pod
//	agent ◀── Results ──────────────────┘
//
// A probe sleeps on a timer until its next time. Readiness and liveness wait until the startup probe, if there is one,
// has succeeded. A startup probe ends with its first result that counts, a liveness probe with its first failure that
// counts: what comes next is a new container, and with it a new Start.
//
// Locks: Manager.mu guards the table of running probes; neither a check nor a callback happens under it.
package probe
