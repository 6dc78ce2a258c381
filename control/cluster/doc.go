// Package cluster manages the members of the cluster: it admits servers and agents by token, keeps their records, changes the
// Raft configuration for administrators, rotates the gossip keys, the CA and the service-account key, saves and restores snapshots, and reports
// events. All of it is the gRPC service of clusterpb, which each server has.
//
//	joiner ── token ──▶ any server ──────── as a server ───────▶ leader
//	   ▲                   │ pki signs                             │ AddLearner
//	   └── certificates ───┤                                       ▼
//	                       └─▶ store: /balsa/{members,nodes,tokens,removed,revoked,gossip,rotation}/ ◀── Raft's configuration
//	                                                                       ▲
//	gossip ── which servers live ──▶ Members, Status, Events ◀── who votes, who leads ┘
//	agents' connections ── which agents live ──┘
//
// Each fact has one source. Gossip says which servers are alive; agents take no part in it. An agent is alive while it answers on
// the connection that it keeps to each server under its own certificate. A certificate proves the identity of a caller. Raft's
// configuration says which servers vote. The records under /balsa/ say which members were admitted, under which key, and where
// the servers are; the call Servers gives agents these addresses.
//
// A name belongs to one machine. A server's name may be taken by another server only when gossip has seen the first
// one go. An agent's name is bound to its key: another machine gets the name after the administrator has removed the agent, or
// with a token that replaces this very node, which is good once and only while the node is gone. An agent whose certificate has
// expired renews it with the newest key on record, without a token (expired.go). The certificates of an agent that was removed or
// replaced are refused by their keys until they have expired (revoke.go).
//
// Decisions are functions of values: joinrules.go, voterrules.go, versionrules.go, eventdifferences.go. rights.go is the table of
// which kind of caller may call which method. The rest reads, signs and writes.
//
// # Goroutines
//
// Run has two. One (changeloop.go) keeps this server's own record up to date, turns changes of gossip and Raft into events,
// carries out rotations of keys here and continues them while this server leads. The other watches the records and wakes it. Each
// call has gRPC's. Members asks the other servers in parallel and waits for them.
//
// # Locks
//
// Packages eventlog and joinlimit lock their own state; no other lock is taken and nothing is sent under these locks.
package cluster
