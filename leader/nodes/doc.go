// Package nodes has the controllers of nodes: address ranges, health, and the eviction of pods.
//
//	Nodes ──▶ ranges: spec.podCIDR of each node
//	Nodes, Leases, Liveness ──▶ lifecycle: conditions of silent nodes, taints by condition, readiness of their pods
//	Nodes, Pods ──▶ eviction: deletes pods that do not tolerate a NoExecute taint, after their tolerationSeconds
//	Nodes, Pods ──▶ collector: deletes pods of nodes that are gone, and the oldest of too many ended pods
//
// The lifecycle controller writes conditions only of nodes that have been silent for a while, and only the taints whose keys it
// owns. None of the four changes a pod's spec or creates anything.
//
// When most nodes fall silent at once their pods stay: the taints that evict pods are removed until it is clear that the nodes
// failed, and not their connection to this process.
//
// Goroutines: the workers of one work loop each, and one that follows the liveness source; no polling: every deadline is a delayed queue entry.
package nodes
