// Package routes owns the decision how the pods of each other node are reached from this one.
//
//	Node objects ──► NodeOf() ──► []Node ─┐                ┌─► package host: routes, the tunnel and its entries
//	                                      ├─► Build() ─► Plan
//	kernel: links, routes ──────► Facts ──┘                └─► nftables: which nodes may send to the tunnel's port
//
// A node whose address is on a subnet of this host is a gateway to its pods: one route, and no header is added to packets. The
// subnet must let packets with pods' addresses pass. Every other node is a peer of the tunnel (VXLAN, RFC 7348; or in mode UDP
// plain packets in UDP, which a process carries). The tunnel learns no addresses and sends no ARP: every entry comes from Node
// objects. A node's address in the tunnel is the network address of its pod network, which no pod gets, and its link-layer
// address is made from that. In IPv6 it is a router whose link-local address is made from the link-layer address.
//
// In mode WireGuard every other node is a peer, known by the key it has published; nodes that do not agree on encryption, and
// keys that two nodes claim, are faults.
//
// Each address family is planned by itself: the pods of a dual-stack node may be reached directly in one and through the tunnel
// in the other. The tunnel's own packets are IPv4 if this node has an IPv4 address.
//
// Everything here is a pure function of values: no kernel, no clock, no lock.
package routes
