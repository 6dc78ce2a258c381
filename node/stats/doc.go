// Package stats owns the numbers about the node, its pods and containers: what the kubelet's /stats/summary and
// /metrics/resource show.
package stats
