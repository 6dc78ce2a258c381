// Package member owns which servers are alive: gossip among servers, the table that finds a server's address by its ID, and the autopilot
// that turns both into changes of Raft's configuration.
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
// A holder of the gossip key can announce anything: false addresses, departures, and incarnations that cannot be refuted. So only servers
// hold the key, and agents take no part; a server learns from an agent's connections whether it is alive (control/tunnel). Between servers,
// gossip decides which servers are alive and at which address, and nothing else. Mutual TLS proves the identity of a server, and Raft's
// configuration decides which servers vote.
//
// # Identity
//
// A server is its ServerID, which is no address. A member that comes back with another address is accepted as soon as its old address has
// been found dead, or has left. Of two live members with one name, or one ServerID, the first stays, and Run of the second returns
// ErrNameTaken.
//
// # Timing
//
// With DefaultTiming and five members, a machine that dies counts as failed everywhere after about 2 s, and in nine of ten cases within
// 3 s. A member that is slow but alive refutes the suspicion: a suspicion that a second member confirms becomes a failure that soon, one
// without confirmation takes six times as long, and a member whose own probes are late waits longer (Lifeguard,
// https://arxiv.org/abs/1707.00788). A false alarm ends by itself: the member is alive again with a new Since.
//
// At rest a member sends 5 and receives 5 packets of about 130 bytes per second (probes and answers), whatever the size of the cluster, and
// exchanges the whole table with one other member over TCP every 15 s.
//
// # Goroutines
//
// Run has one for the joiner, memberlist its own (probe, gossip, push-pull, packets), wire one per socket. The end of Run closes every
// socket, which ends them; Run joins its own, and memberlist's end within one probe. Autopilot.Run has one goroutine per server while it
// asks for Stats.
//
// # Locks
//
// memberlist calls the delegates with its node lock held; they take table.mu or limiter.mu, each of which is held for map work only and
// under which no lock is taken. Gossip.life orders Leave and UpdateMeta against the end of Run.
package member
