// Package policy owns the NetworkPolicies of one node: it keeps in the kernel the rules for the pods that run here.
//
//	NetworkPolicies ────► any? ──no──► no table, nothing else watched
//	(watched always)        │yes
//	                        ▼
//	all Pods, Namespaces ─► plan.State ──► plan.Change ──► rules.Tables: one transaction
//	the node's agent ─────► (Admit)            ▲
//	kernel ─► another program changed them ────┘ made anew, in one transaction
//	          connections that tighter policies no longer allow ──► deleted, and cut
//
// Pods and namespaces are watched from the first policy on until the last is gone. Only what policies need of them is kept, and
// once: the watches write into the plan, without a cache beside it.
//
// A pod's first packet finds its rules: the agent calls Admit between attaching a pod and starting anything in it, and Admit
// returns when the kernel has the rules for the pod's addresses. A pod that was here before this process may have addresses
// that neither the API nor the agent has told yet. Until all of these are known, the kernel drops new connections from and to
// unknown addresses on the bridge. Rules stay in the kernel when the process ends, and the next process changes what differs.
//
// Policies apply to connections when they begin. When policies become tighter, the kernel's connections are checked again. One
// that would not be allowed to begin is deleted from the kernel, and its packets are dropped for as long as they come.
//
// Goroutines: Run decides and writes; three watches (two of them only while there are policies) and the kernel's events change
// the state and wake it. Engine.mu guards the state and everything below it in the struct, and is held while the kernel is
// written to; no other lock is taken under it.
package policy
