// Package policy owns the NetworkPolicies of one node: it keeps in the kernel what they say of the pods that run here.
//
//	NetworkPolicies ────► any? ──no──► no table, nothing else watched
//	(watched always)        │yes
//	                        ▼
//	all Pods, Namespaces ─► plan.State ──► plan.Change ──► rules.Tables: one transaction
//	the node's agent ─────► (Admit)            ▲
//	kernel ─► somebody changed our tables ─────┘ made anew, in one transaction
//	          flows that tightened policies no longer allow ──► forgotten, and cut
//
// Pods and namespaces are watched from the first policy on until the last is gone, and only what policies need of them is
// kept, once: the watches write into the plan, there is no cache beside it.
//
// A pod's first packet finds its rules: the agent calls Admit between attaching a pod and starting anything in it, and Admit
// returns when the kernel has what follows from the pod's addresses. Pods that were here before this process, and of which
// neither the API nor the agent has said where they are, close the node to all addresses on the bridge that are not known
// (new connections of guests, such as probes and containers of others, wait for a moment), until they are found. Rules stay
// in the kernel when the process ends, and the next one changes what differs.
//
// Connections are judged when they begin. When policies become tighter, the kernel's flows are judged again; one that would
// not be allowed to begin may not go on either: it is forgotten, and its packets are dropped for as long as they come.
//
// Goroutines: run decides and writes; three watches (two of them only while there are policies) and the kernel's events
// change the state and wake it. Engine.mu guards the state and everything below it in the struct, and is held while the
// kernel is written to; nothing else is locked under it.
package policy
