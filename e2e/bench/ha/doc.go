// Command ha owns the figures of several servers: how long writes and
// controllers stand still when the leader is killed, how many requests the etcd
// API takes and what they cost, whether a loaded machine loses its leader, and
// what a large store costs. It prints one table.
//
//	main ── families ─┬─ failover, controllers, steady ── quorum.Cluster: Balsa,
//	                  │                                    and upstream's etcd
//	                  ├─ put, range, watch, … ── etcd's own benchmark program
//	                  └─ scale ── the store's own benchmark
//
// Both systems run beside each other, each with three members, a directory
// each, TLS and every write synced, and are measured in turns, window by window,
// so that the noise of a shared machine falls on both.
package main
