// Package quorum owns replicated stores under test. A Cluster is several servers of the etcd v3 API, each on its own
// machine (see e2e/lan), which can be started, killed, paused, stopped and replaced. Balsa and upstream's etcd are the
// two systems behind it, so that the same tests examine both, and their figures can be compared.
//
//	Cluster ── lan.Network ── machine i: one server process, its directory
//	   └─ system: what differs (programs, certificates, membership) ─┬─ etcd
//	                                                                 └─ balsa
//
// The package does not import the product: it uses the product as people do. A Cluster's methods may be called from
// several goroutines, except that those about one member must not run at the same time. New starts nothing, Form starts
// all members.
package quorum
