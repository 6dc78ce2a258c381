// Package consensus puts commands into Raft's log, on whichever server leads, and says when reads are current.
//
//	Propose ─▶ proposals ─▶ send ─┬─ leads here ─▶ append ─▶ Raft ─▶ state ─▶ Settle
//	                              └─ elsewhere ──▶ Peers.Forward ─▶ its Forwarded ─▶ append
//
// A write waits in this server's proposals and goes to the leader in a batch. Its answer comes from applying the batch here, so a
// client reads its own writes. A batch names its origin, its sequence numbers and the term it was made for; in another term it
// has no effect, and within a term the leader takes each number once. So a batch may be sent again when its fate is unknown, and
// no write takes effect twice.
//
// A read is current once this server has applied the commit index that the leader had after the question, confirmed by a quorum
// (readindex.go). No clock and no lease is trusted.
//
// The package also owns the life of Raft: the leader and the term, snapshots through Raft, and the goroutines that end with it. It
// knows nothing of what commands mean: the state is a Progress that advances and Results that are handed to Settle.
//
// New starts nothing. Start begins; Close ends Raft and joins every goroutine. Proposals.mu, ledger.mu, Progress.mu, reads.mu and
// Consensus.mu guard their own; none is held while another is taken.
package consensus
