// Package routes owns the decision by which way the pods of each other node are reached from this one.
//
//	Node objects ──► NodeOf() ──► []Node ─┐                ┌─► package host: routes, the tunnel and its entries
//	                                      ├─► Build() ─► Plan
//	kernel: links, routes ──────► Facts ──┘                └─► package nft: who may send to the tunnel's port
//
// A node whose address lies on a subnet of this host is a gateway to its pods: one route, nothing added to packets, which
// takes a subnet that lets packets with pods' addresses pass. Every other node is a peer of the tunnel (VXLAN, RFC 7348; or
// in mode UDP plain packets in UDP, which a process carries). The tunnel learns nothing and asks nobody: every entry comes
// from Node objects. A node's address in the tunnel is the network address of its pod network, which no pod gets, and its
// link-layer address is made from that; to IPv6 it is a router with the link-local address made from the latter.
//
// In mode WireGuard every other node is a peer, known by the key it has published; nodes that do not agree on encryption, and
// keys that two nodes claim, are faults.
//
// The families go their own ways: the pods of a dual-stack node may be reached directly in one and by the tunnel in the
// other. The tunnel's own packets are IPv4 where this node has such an address.
//
// Everything here is a pure function of values: no kernel, no clock, no lock.
package routes
