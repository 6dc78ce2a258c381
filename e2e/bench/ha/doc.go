// Command ha measures several servers: the pause of writes and controllers after the leader is killed, the rate and
// cost of requests of the etcd API, elections on an overloaded machine, and the cost of a large store. It prints one
// table.
//
//	main ── families ─┬─ failover, controllers, steady ── quorum.Cluster: Balsa,
//	                  │                                    and upstream's etcd
//	                  ├─ put, range, watch, … ── etcd's own benchmark program
//	                  └─ scale ── the store's own benchmark
//
// Both systems run at the same time, each with three members that have a directory each, TLS and synced writes. They
// are measured window by window in turns, so that the noise of a shared machine affects both.
package main
