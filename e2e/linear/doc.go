// Command linear owns the trial of a replicated store by fire: clients read,
// write, list and transact through every server, watchers follow all of it, and
// servers, links, disks and clocks fail in an order drawn from a seed. What
// everybody was told is then judged by e2e/history.
//
//	run ─┬─ clients  ──┐
//	     ├─ watchers ──┼─▶ history.Check ─▶ one line, or a directory with all
//	     ├─ leases   ──┘                    that is needed to look into it
//	     └─ chaos ──▶ quorum.Cluster
//
// Each run is a cluster of its own; several run side by side.
package main
