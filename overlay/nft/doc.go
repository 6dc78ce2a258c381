// Package nft is the one engine that reads and writes nftables tables, through netlink. It knows no Services and no
// policies: packages overlay/services/rules and overlay/policy/rules say what their tables hold, as values of this package.
//
//	Table: sets, chains, rules ─┐
//	Elements of sets and maps ──┴─► Change ──► Conn.Apply ──► one transaction ──► kernel
//	                                                                               │
//	ReadTable ─► Contents ─► compared with a Table by Holds ◄──────────────────────┤
//	ReadElements ─► []Element, which the caller compares ◄─────────────────────────┤
//	Watch ─► Foreign: another program changed a table of ours ◄────────────────────┘
//
// A Change is a list of steps, which the kernel carries out in order. Conn.Apply makes all of them or none, for tables of
// both families together. Conn.ApplyInParts may cut a very large Change between two steps into several transactions, so the
// steps must be ordered such that the tables are usable after each of them.
//
// Every rule carries a digest of its content as its comment. The kernel lists expressions in another form than it was sent
// them, so the comparison looks at the digests.
//
// Expressions and types of sets are those of github.com/google/nftables. The messages around them are written here: that
// library asks the kernel to acknowledge every message and makes several allocations for each element, of which a table of
// Services has 100,000.
//
// A change has reached packets when Apply returns, and listeners of NFNLGRP_NFTABLES hear of it then.
//
// A Conn is not safe for concurrent use. Watch runs one goroutine more, joined when its context ends.
package nft
