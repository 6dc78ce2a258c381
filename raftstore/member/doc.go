// Package member owns which servers are alive: gossip among servers, the address
// book that finds a server by its identity, and the autopilot that turns both
// into changes of Raft's configuration.
//
//	other members ◄── UDP, TCP 7946, AES-256-GCM, label = cluster ID ──► wire
//	                                                                     │ bounded
//	                                                      memberlist (SWIM, Lifeguard)
//	                                                                     │ delegates
//	   Members, Changed, Resolve, Alive ◄──────── table ◄────────────────┤
//	                      │                                              │
//	 autopilot: plan(servers, config) ─► Promote, Demote, Remove       joiner: seeds,
//	 (leader only)                                                     failed members
//
// Every holder of the key can say anything in gossip: false addresses, departures,
// and incarnations that cannot be refuted. So servers alone hold it and agents take
// no part; a server learns from their connections whether agents are alive
// (control/tunnel). Between servers gossip says where and who is alive, no more. The
// identity of a server comes from mutual TLS, who votes from Raft's configuration.
//
// # Identity
//
// A server is its ServerID, which is no address. A
// member that comes back with another address is taken as soon as its old
// address has been found dead, or has left. Two live members with one name, or
// one ServerID: the one that came first stays, the other's Run returns
// ErrNameTaken.
//
// # Timing
//
// With DefaultTiming and five members a machine that dies is failed everywhere
// in 2 s, and in 3 s nine times of ten. A member that is slow but alive refutes: a suspicion needs a second
// member's word to become a failure that soon, alone it takes six times as long,
// and who notices that its own probes are late waits longer (Lifeguard,
// https://arxiv.org/abs/1707.00788). A false alarm ends by itself: the member is
// alive again with a new Since.
//
// At rest a member sends 5 and receives 5 packets of about 130 bytes a second
// (probes and answers), whatever the size of the cluster, and exchanges
// the whole table with one other over TCP every 15 s.
//
// # Goroutines
//
// Run has one for the joiner, memberlist its own (probe, gossip, push-pull,
// packets), wire one per socket. The end of Run closes every socket, on which
// they return; Run joins its own, memberlist's end within one probe. Autopilot
// works in its Run alone, with one goroutine per server while it asks for
// progress.
//
// # Locks
//
// memberlist calls the delegates with its node lock held; they take table.mu or
// limiter.mu, each of which is held for map work only and is last. Gossip.life
// orders Leave and UpdateMeta against the end of Run.
package member
