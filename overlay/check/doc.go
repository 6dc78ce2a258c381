// Package check owns the answer to "which way between nodes is broken, and why": every node attaches a network namespace to
// its pod network as if it were a pod, and tries from there and from its host what pods and programs do.
//
//	balsa net check ──Run──► Call ──(API server, node proxy)──► Agent on each node ──CNI──► probe: a namespace like a pod's
//	       │                                                      │ open: attach, answer      │ TCP and UDP echo
//	       │                                                      │ probe: try the targets    ▼
//	       │                                                      └ close: detach      other nodes' probes, Services, DNS
//	       └──► Report ──Judge (pure)──► findings, table
//
// Nothing listens on a host for this, and no container is made. Only who knows the name of a run, which is random, is
// answered by its probes. A probe is detached when the run is closed, when its time is over, when the process ends, and, if
// that was killed, at the next start or run: a file for each says that it is there.
//
// Goroutines: two for each open probe (its echo), as many as a request tries targets at once. Agent.Run closes every probe
// and joins them. One lock guards the table of probes; a probe's own guards what it heard.
package check
