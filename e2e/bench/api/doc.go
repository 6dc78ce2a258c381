// Command api measures the API: the servers' cost of an operation, its latency, the rate of operations, and the
// servers' memory. It prints one table. Given upstream's kube-apiserver and etcd, it measures both systems window by
// window in turns, so that the noise of a shared machine affects both.
//
//	main ── families ─┬─ idle, memory-after, definitions ── fresh clusters
//	                  └─ create … watch-list ────────────── one cluster each
//	  └── system ─┬─ balsa server, without its agent
//	              └─ etcd and kube-apiserver
//
// Both have TLS, RBAC and synced writes, no audit and no pods. Balsa runs its controllers and its scheduler too;
// upstream's are left out. The clients are those of package load. A family is one file and adds rows to the table.
// Everything runs on the main goroutine except the clients of a window, which the window joins.
package main
