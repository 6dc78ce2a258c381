// Package policy enforces NetworkPolicies on one node: it keeps the nftables rules for the node's pods up to date.
//
//	NetworkPolicies ────► any? ──no──► no table, nothing else watched
//	(watched always)        │yes
//	                        ▼
//	all Pods, Namespaces ─► plan.State ──► plan.Change ──► rules.Tables: one transaction
//	the node's agent ─────► (Admit)            ▲
//	kernel ─► another program changed them ────┘ rebuilt in one transaction
//	          connections that tighter policies no longer allow ──► deleted, and cut
//
// Pods and namespaces are watched from the first policy on until the last is gone. Only the fields that policies need are
// kept: the watches write directly to the plan, without a cache of objects.
//
// A pod's rules exist before its first packet: the agent calls Admit after attaching a pod and before starting its
// containers, and Admit returns when the kernel has the rules for the pod's addresses. A pod that was started before this
// process may have addresses that neither the API nor the agent has reported yet. Until all of them are known, the kernel
// drops new connections from and to unknown addresses on the bridge. Rules stay in the kernel when the process ends, and
// the next process changes what differs.
//
// Policies apply to connections when they begin. When policies become tighter, the kernel's connections are checked again.
// A connection that the policies would not allow is deleted from conntrack, and all further packets of it are dropped.
//
// Goroutines: Run decides and writes; three watches (two of them only while there are policies) and the kernel's events change
// the state and wake it. Engine.mu guards the state and everything below it in the struct, and is held while the kernel is
// written to; no other lock is taken under it.
package policy
