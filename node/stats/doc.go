// Package stats owns the numbers about the node, its pods and containers: what the kubelet's /stats/summary and
// /metrics/resource show.
//
//	CRI ListPodSandboxStats ─▶ pods, containers ─┐
//	/proc, statfs(2)        ─▶ the node          ├─▶ Summary
//	the pods' directories   ─▶ volumes, logs     ─┘
//
// Nothing runs between two calls. What is dear to find out, how much the files of a volume take, is remembered for a
// minute. Locks: one, for what is remembered.
package stats
