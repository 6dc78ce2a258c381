// Package stats collects the resource usage of the node, its pods and containers for the kubelet's /stats/summary and
// /metrics/resource.
//
//	CRI ListPodSandboxStats ─▶ pods, containers ─┐
//	/proc, statfs(2)        ─▶ the node          ├─▶ Summary
//	the pods' directories   ─▶ volumes, logs     ─┘
//
// Nothing runs between two calls. The size of a volume's files is expensive to read, so it is cached for a minute. One lock
// guards the cache.
package stats
