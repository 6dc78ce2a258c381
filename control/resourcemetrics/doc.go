// Package resourcemetrics serves metrics.k8s.io: how much processor time and memory nodes and pods use.
//
//	each node ── a report every 15 s, over its own connection ──▶ Receive ──▶ Reports ──▶ nodes, pods: get, list
//	                                                                            ▲
//	                            Nodes and Pods in the store: labels, pod → node ┘
//
// Nothing is stored and no node is asked on behalf of a client: each server holds the newest report of every node. A
// report counts while the connection that it came over does, and for a minute at most, so that values expire. A report
// has a bounded size, so memory is bounded by the nodes that are connected and in practice by their pods.
//
// A node is believed about itself and about the pods bound to it, and about nothing else: a pod's figures are looked up
// in the report of the node that the Pod object names, so that what a node says of other pods is never read.
//
// There is no APIService object for the group. With one, Helm would refuse to install metrics-server, whose chart
// brings an object of that name. When metrics-server is installed, its APIService takes requests over (package
// control/aggregation); when it is removed, they are answered here again.
//
// Goroutines: none. Locks: Reports.mu guards the table of reports.
package resourcemetrics
