// Package quorum owns replicated stores under test: a Cluster is several
// servers that serve the etcd v3 API, each on a machine of its own (see
// e2e/lan), which can be started, killed, paused, stopped and replaced. Balsa
// is one system behind it, upstream's etcd the other, so that what examines the
// one examines the other, and figures stand side by side.
//
//	Cluster ── lan.Network ── machine i: one server process, its directory
//	   └─ system: what differs (programs, certificates, membership) ─┬─ etcd
//	                                                                 └─ balsa
//
// Nothing here imports the product: it is used as people use it. A Cluster's
// methods may be called from several goroutines, but those about one member
// from one at a time; New starts nothing, Form starts all.
package quorum
