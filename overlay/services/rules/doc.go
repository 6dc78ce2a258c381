// Package rules writes the plan of Services to nftables: the tables "balsa", one per address family. It converts tables of
// package services to values of package nft, and the kernel's listing back.
//
//	every packet:
//	prerouting, output ─► the tunnel's port ─► set of members ─► not tracked; others: drop
//
//	the first packet of a connection:
//	prerouting, output ─► services ─► map by address ─┬─► way ─► its chain: group, number ─► backend ─► DNAT
//	           │              └─────► map by port ────┘
//	           └──► no-backends ─► sets of destinations without backends ─► reject or drop
//	input, postrouting ─► led to the tunnel's port? drop
//	postrouting ─► marked, hairpin, leaving the pod network ─► masquerade
//
// Packets of an established connection between pods pass only the tunnel's rule, and without a tunnel no rule at all: a
// hook that has rules costs each packet as much as a lookup of its connection.
//
// The cost of a packet does not grow with the number of services, because each map is a hash. Nor does the cost of a change:
// services and backends are data in maps, and there are only as many chains as there are ways (services.Way). The kernel
// looks at every chain of every table when a transaction ends, and walks through all chains and all elements of verdict maps
// when a rule or such an element is added. Neither happens when a backend comes or goes.
//
// A destination has a way (8 bytes) and a group (8 bytes), in two maps. The chain of the way looks up the group, draws a
// number, and looks up the backend of that number. The kernel does not let a rule read registers that another rule wrote, so
// each rule looks up again what it needs.
//
// Session affinity remembers a client with its backend's id. The id counts as long as the group has a backend of that id, so
// nothing has to go through the clients when a backend goes.
//
// The kernel announces a new backend to listeners of NFNLGRP_NFTABLES as a NFT_MSG_NEWSETELEM of the set "backends", whose
// data is the backend's address and port.
//
// Everything but Table is pure. A Table is not safe for concurrent use.
package rules
