// Package plan owns the decision what the kernel of one node must hold for the cluster's NetworkPolicies: sets of addresses,
// chains of rules, and which chain judges which pod. It is pure: values in, values out, no clock, no I/O.
//
//	pods of the node, policies ──► layout: chains, verdicts, the groups that they need
//	all pods, namespaces ────────► members of those groups ─┐
//	                               layout ──────────────────┴──► Change: what differs from the kernel
//
// A selector is compiled once, to a group that all policies with that selector share; only groups that a pod of this node
// needs have members. A pod that comes or goes changes the groups it matches and nothing else. Chains are named by their
// content and never change in place, so a policy that changes means new names and verdicts that lead to them.
//
// Meaning follows networking.k8s.io/v1: policies add up; a pod that no policy of a direction selects is open in it; named
// ports are those of the pod that is sent to; a peer's ipBlock means addresses of pods like any others. What cannot be
// understood in a policy (older servers let some through) allows nothing, and is told as a fault.
//
// A State is not safe for concurrent use.
package plan
