// Package nft owns the nftables table "balsa": it writes what package routing decided into the kernel, through netlink,
// and reads back what is there.
//
//	prerouting, output ─► services ─► map by address ─► chain of the service ─► one backend
//	                          └─────► map by node port ─┘
//	forward, input, output ─► nobody ─► map of destinations without backends ─► reject or drop
//	input, forward ─► the tunnel's port ─► set of members, or drop
//	postrouting ─► marked, hairpin, leaving the pod network ─► masquerade
//
// What a packet costs does not grow with the number of services: each map is a hash. Chains are named by their content
// and never changed in place, so applying a table means adding and removing names, and what another process of ours left
// behind is recognised. A Table is not safe for concurrent use.
package nft
