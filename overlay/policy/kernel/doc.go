// Package kernel owns the nftables tables "balsa-policy": it writes what package plan decided, through netlink, reads back
// what is there, and tells when somebody else changed it.
//
//	forward ─► established? accept
//	        ─► cut? drop
//	        ─► map egress by source ─► chain of the pod ─► allowed: ingress; else denied
//	        ─► ingress: map by destination ─► chain of the pod ─► allowed: accept; else denied
//	        denied: to itself? accept; else drop
//
// Only the first packet of a connection goes further than the first rule. A pod without policies is in neither map: two
// lookups that find nothing. What a node itself sends to its pods, and what they send to it, is never forwarded and so never
// judged. There is one table for each family; a change of both is one transaction, which holds or does not hold as a whole.
//
// Tables are not safe for concurrent use.
package kernel
