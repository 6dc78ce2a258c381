// Package probe owns the health checks of containers: when each startup, readiness and liveness probe runs, what it
// asks, and when its answer counts.
package probe
