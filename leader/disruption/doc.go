// Package disruption keeps the status of PodDisruptionBudgets, by which evictions are allowed or refused.
//
// It watches PodDisruptionBudgets, Pods and the kinds that own pods. It writes the budgets' status only, and never evicts
// or changes a pod.
//
// Goroutines: the workers of one work loop.
package disruption
