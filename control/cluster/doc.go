// Package cluster owns who belongs to the cluster: it admits servers and agents by token, keeps their records, changes
// the Raft configuration when somebody asks for it, rotates the gossip keys, saves and restores snapshots, and tells
// what happens. All of it is the gRPC service of clusterpb, on every server.
//
//	joiner ── token ──▶ any server ──────── as a server ───────▶ leader
//	   ▲                   │ pki signs                             │ AddLearner
//	   └── certificates ───┤                                       ▼
//	                       └─▶ store: /balsa/{members,nodes,tokens,removed,revoked,gossip}/ ◀── Raft's configuration
//	                                                                       ▲
//	gossip ── which servers live ──▶ Members, Status, Events ◀── who votes, who leads ┘
//	agents' connections ── which agents live ──┘
//
// Sources, never mixed: gossip says which servers are alive, and agents take no part in it; an agent is alive while it
// answers on the connection that it keeps to each server, under its own certificate. Certificates say who somebody is;
// Raft's configuration alone says who votes. The records under /balsa/ say what was admitted, under which key, and where
// the servers are: agents are told by Servers, from nothing else.
//
// A name belongs to one machine. A server's name may be taken by another server only when gossip has seen the first
// one go. An agent's name is bound to its key: nobody else gets it until the administrator has removed it, or has made a token
// that replaces this very node, which is good once and only while the node is gone. An agent whose certificate has expired renews it by
// the newest key on record for it, without a token (expired.go). The certificates of an
// agent that was removed or replaced are refused by their keys until they have expired (revoke.go).
//
// Decisions are values to values (admit.go, change.go, events.go, version.go); the rest asks, signs and writes.
//
// # Goroutines
//
// Run has one, which keeps this server's own record true, turns changes of gossip and Raft into events and moves a rotation of the gossip keys on while
// this server leads. Each call has gRPC's. Members asks the other servers in parallel and waits for them.
//
// # Locks
//
// ring.mu guards the kept events, limiter.mu the failed joins by source. Neither is held while another is taken or
// anything is sent.
package cluster
