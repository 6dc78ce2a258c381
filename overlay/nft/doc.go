// Package nft owns the nftables tables "balsa", one of each address family: it writes what package routing decided into
// the kernel, through netlink, and reads back what is there.
//
//	every packet:
//	prerouting, output ─► the tunnel's port ─► set of members ─► not tracked; others: drop
//
//	the first packet of a connection:
//	prerouting, output ─► services ─► map by address ─┬─► way ─► its chain: group, number ─► backend ─► DNAT
//	           │              └─────► map by port ────┘
//	           └────────► nobody ─► sets of destinations without backends ─► reject or drop
//	input, postrouting ─► led to the tunnel's port? drop
//	postrouting ─► marked, hairpin, leaving the pod network ─► masquerade
//
// Between pods, packets of a connection that is known pass no rule but the first of the tunnel, and without a tunnel none: a
// hook that has rules costs every packet that passes it as much as a look at the connections does.
//
// What a packet costs does not grow with the number of services: each map is a hash. Nor does what a change costs: services
// and backends are data in maps, and there are only as many chains as there are ways (routing.Way). The kernel looks at
// every chain of every table when a transaction ends, and walks through all chains and all elements of verdict maps when a
// rule or such an element is added. So neither happens when a backend comes or goes.
//
// A destination has a way (8 bytes) and a group (8 bytes), in two maps. The chain of the way asks for the group, draws a
// number, and asks for the backend of that number. The kernel does not let registers be read in another rule than they were
// written in, so what the first rule knew is looked up again.
//
// A client that stays with its backend is remembered with the backend's id, which is good as long as the group has a backend
// of that id. So nobody has to look through the clients when a backend goes.
//
// A change is one transaction, unless it is very large: then it is several, each of which leaves the table usable. Rules
// carry a digest of their content as comment, so that what another process of ours left behind is recognised.
//
// A change of the ruleset has reached packets when Apply returns, and listeners of NFNLGRP_NFTABLES hear of it then: a new
// backend is a NFT_MSG_NEWSETELEM of the set "backends", whose data is the backend's address and port.
//
// A Table is not safe for concurrent use. Watch runs one goroutine more, joined when its context ends.
package nft
