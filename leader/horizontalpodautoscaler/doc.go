// Package horizontalpodautoscaler changes how many replicas workloads have, by what their pods use or by other metrics.
//
//	HorizontalPodAutoscalers ──▶ queue ──▶ scale of the target, pods, metrics ──▶ decide (pure) ──▶ scale, status, events
//	          ▲                                                                      │
//	          └──────────────────── after the sync period ◀──────────────────────────┘
//
// It writes the scale subresource of any kind that has one and the status of HorizontalPodAutoscalers. Rules, conditions
// and the texts of events are upstream's (k8s.io/kubernetes/pkg/controller/podautoscaler).
//
// Metrics have no events, so each autoscaler is looked at again after the sync period, 15 s; a new or changed one is
// looked at at once. A metric that cannot be read is reported in a condition and an event, and is asked for again in the
// next period, not sooner.
//
// Recent recommendations and changes, on which stabilization windows and policies depend, are in memory and end with the
// term: the next one begins with the replicas that it finds, so nothing is scaled down before the window has passed.
// They are bounded by the windows, an hour at most.
//
// Goroutines: the workers of one work loop. Locks: controller.mu guards what is remembered of each autoscaler; no
// API is called while it is held.
package horizontalpodautoscaler
