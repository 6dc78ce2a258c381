// Package tunnel is the node's end of the connections over which servers reach a node that they cannot connect to. The node
// opens one connection to each server and keeps it while the server is known. The package also decides which targets a server
// may reach through the node.
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
// The protocol on the connection is not here: Config.Carry speaks it.
//
// Goroutines: Run has one, and joins one a server. Locks: Agent.mu guards the list of servers; nothing is called while
// it is held. An idle connection sends only TCP keep-alives.
package tunnel
