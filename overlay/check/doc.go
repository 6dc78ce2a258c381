// Package check finds out which path between nodes is broken, and why: every node attaches a network namespace to its pod network
// as if it were a pod, and tries from there and from its host the connections that pods and programs make.
//
//	balsa net check ──Run──► Call ──(API server, node proxy)──► Agent on each node ──CNI──► probe: a namespace like a pod's
//	       │                                                      │ open: attach, answer      │ TCP and UDP echo
//	       │                                                      │ probe: try the targets    ▼
//	       │                                                      └ close: detach      other nodes' probes, Services, DNS
//	       └──► Report ──Diagnose (pure)──► findings, table
//
// Nothing listens on a host for this, and no container is made. Probes answer only messages with the name of their run, which is
// random. A probe is detached when the run is closed, when its time is over, when the process ends, and, if the process was
// killed, at the next start or run: each probe has a file that records it.
//
// Goroutines: two for each open probe (its echo), and as many as a request tries targets at once. Agent.Run closes every probe
// and joins them. One lock guards the table of probes; a lock of each probe guards the nodes that it heard.
package check
