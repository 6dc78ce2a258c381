// Package resourcemetrics measures how much processor time and memory the node and its pods use, and reports that to
// the servers, which answer `kubectl top` and the HorizontalPodAutoscaler with it.
//
//	node/stats ── a sample every 15 s ──▶ history (pure) ──▶ report ──┬──▶ Connect: one connection to each server
//	                                                                  └──▶ …
//
// A server opens the connection and reads it; the node writes one report after each sample. A report is whole: the
// NodeMetrics of the node and the PodMetricsList of its pods (k8s.io/metrics, as protobuf), each behind its length. So a
// report replaces the one before, and what is not in it is gone. 30 pods take about 3 KB. A server that reads slowly
// misses reports and delays no other server.
//
// Rates and windows are those of metrics-server: the processor time between two samples, over the time between them. A
// pod is reported once every container of it that runs has two samples, or has run for at least 10 s since the sample
// before.
//
// Goroutines: Run has none of its own. Locks: Reporter.mu guards the newest report.
package resourcemetrics
