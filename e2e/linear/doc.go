// Command linear tests a replicated store under faults: clients read, write, list and transact through every server,
// watchers follow all changes, and servers, links, disks and clocks fail in an order drawn from a seed. Package
// e2e/history then checks all answers.
//
//	run ─┬─ clients  ──┐
//	     ├─ watchers ──┼─▶ history.Check ─▶ one line, or a directory with all
//	     ├─ leases   ──┘                    that is needed to look into it
//	     └─ chaos ──▶ quorum.Cluster
//
// Each run has its own cluster; several runs are executed at the same time.
package main
