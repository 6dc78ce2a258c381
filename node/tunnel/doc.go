// Package tunnel owns the node's end of the connections by which servers reach it that cannot connect to it: one to each
// server, opened by the node, kept while the server is known, and what servers may have carried over them.
//
//	records ─ servers ──▶ Update ──▶ one keeper a server ── Connect ──▶ server
//	                                     │  ▲ again at once when it breaks, then ever later
//	                                     ▼  │
//	                                   Carry ── "kubelet", "10.244.1.7:80" ──▶ Rules ──▶ dial
//
// A server may ask for the node's own API and its reports, for pods, for Services and for the node's own addresses, and for nothing
// else: not for what else the node's network has, and not for what listens on its loopback alone. Targets are addresses;
// no name is resolved for a server.
//
// What is said on the connection is Carry's affair, which whoever starts this hands over.
//
// Goroutines: Run has one, and joins one a server. Locks: Agent.mu guards the list of servers; nothing is called while
// it is held. Nothing is sent while nothing is carried but what TCP sends to see whether the other end is there.
package tunnel
