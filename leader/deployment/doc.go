// Package deployment moves a Deployment's pods from one template to the next by scaling ReplicaSets.
//
// It watches Deployments, ReplicaSets, and Pods (only to know when the last old one of a Recreate rollout is gone). It
// creates, scales, annotates and deletes ReplicaSets, and writes a Deployment's status and its revision annotation. It
// never touches Pods, nor a ReplicaSet that another object controls.
//
//	Deployment + its ReplicaSets ──decide (pure)──▶ plan ──carry out──▶ API
//
// Goroutines: the workers of one work loop; one Deployment is reconciled by one of them at a time.
package deployment
