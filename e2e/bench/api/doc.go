// Command api owns the figures of the API: what an operation costs the
// servers, how long it takes and how many there are a second, and what memory
// the servers need. It prints one table; given upstream's kube-apiserver and etcd
// it measures them beside, window by window and in turns, so that the noise of a
// shared machine falls on both.
//
//	main ── families ─┬─ idle, memory-after, definitions ── fresh clusters
//	                  └─ create … watch-list ────────────── one cluster each
//	  └── system ─┬─ balsa server, without its agent
//	              └─ etcd and kube-apiserver
//
// Both have TLS, RBAC and synced writes, no audit and no pods; ours has its
// controllers and its scheduler too, upstream's are left out. Clients are those of
// package load. A family is one file and adds rows to the table. Everything runs
// on the main goroutine but the clients of a window, which the window joins.
package main
