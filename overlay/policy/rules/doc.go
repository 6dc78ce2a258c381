// Package rules writes the plan of NetworkPolicies to nftables: the tables "balsa-policy", one per address family. It
// converts changes of package plan to values of package nft, and the kernel's listing back.
//
//	forward ─► established? accept
//	        ─► cut? drop
//	        ─► map egress by source ─► chain of the pod ─► allowed: ingress; else denied
//	        ─► ingress: map by destination ─► chain of the pod ─► allowed: accept; else denied
//	        denied: to itself? accept; else drop
//
// Only the first packet of a connection goes further than the first rule. A pod without policies is in neither map: two
// lookups that find nothing. Packets between a node and its own pods are never forwarded, so no policy applies to them. There
// is one table for each family; a change of both is one transaction, which takes effect as a whole or not at all.
//
// Everything but Tables is pure. Tables are not safe for concurrent use.
package rules
