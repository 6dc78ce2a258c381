// Package plan decides which sets of addresses, chains of rules and chain for each pod the kernel of a node must hold for
// the cluster's NetworkPolicies. It is pure: values in, values out, no clock, no I/O.
//
//	pods of the node, policies ──► layout: chains, verdicts, the groups that they need
//	all pods, namespaces ────────► members of those groups ─┐
//	                               layout ──────────────────┴──► Change: what differs from the kernel
//
// A selector is compiled once, to a group that all policies with that selector share. Only groups that a pod of this node
// needs have members. A new or deleted pod changes only the groups that it matches. Chains are named by their content and
// never change in place: a policy that changes makes new chains, and verdicts that jump to them.
//
// The meaning follows networking.k8s.io/v1: policies add up; a pod that no policy of a direction selects may connect freely
// in that direction; named ports are ports of the destination pod; an ipBlock matches addresses of pods like any others. A
// part of a policy that cannot be understood (older servers accepted some) allows nothing, and is reported as a fault.
//
// A State is not safe for concurrent use.
package plan
