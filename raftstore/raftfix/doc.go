// Package raftfix corrects hashicorp/raft from outside: it wraps Raft's transport and stores, and sends messages of its own
// that Raft's protocol allows. Each file names one fault of the library, its consequence, and the test that shows it.
//
//	server.go       the leader and the term are read separately
//	ballot.go       voters refuse candidates, and themselves, for a configuration they have not heard of
//	heartbeat.go    a heartbeat can take the term back
//	confirm.go      VerifyLeader counts answers to older questions
//	commitindex.go  followers learn of a commit with the next entry, or after a pause
//	handover.go     LeadershipTransfer can end in a leader that refuses every write
//	succession.go   the death of a leader is noticed by a missed heartbeat only
//	snapshotend.go  a follower does not know the last entry of the snapshot it installed
//	logend.go       installing a snapshot empties a log that goes on behind it
//
// Four more are corrected where they show, because a wrapper cannot: Raft panics when it cannot store its term, and takes a
// log for longer than it is when it cannot replace the log's end (raftlog: Store.insist, Store.cut); Raft restores a snapshot
// older than what it has applied (raftstore: machine.restore); Raft never answers requests that it holds when it shuts down
// (consensus: Consensus.ask).
//
// The package starts no goroutine but through Server.Spawn and Heartbeats.Run, and writes nothing to disk.
package raftfix
