// Package containermetrics shows the control groups of pods and containers as the metrics of cAdvisor, container_*, for
// /metrics/cadvisor of the kubelet's API.
//
//	/sys/fs/cgroup (v1 or v2) ─▶ Sample ─┐
//	/proc/PID/net/dev         ─▶ link  ──┼─▶ Collector, on scrape
//	the pods as the agent has them ──────┘
//
// cAdvisor itself is not used: it watches all groups of the machine, keeps their history and takes tens of megabytes.
// containerd's ListPodSandboxMetrics, which names the same metrics, is not used either: it counts processor time in whole
// seconds and answers for ten pods a second.
//
// Nothing runs between two scrapes and nothing is remembered, so a series ends with its container.
package containermetrics
