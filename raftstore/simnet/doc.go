// Package simnet is a network in memory, for tests that run several peers in one process. It loses, delays, repeats and reorders messages,
// it is cut in one direction or both, and its peers die, stop for a while and come back.
//
//	 raft ──▶ Transport ─┐                              ┌─▶ Consumer ──▶ raft
//	                     ├─▶ link A→B: delay, loss, cut ─┤
//	store ──▶ Peers ─────┘   link B→A: the answers       └─▶ Handler ──▶ store
//
// Addresses are server IDs. A request and its answer travel separately, each on the link of its direction. So an answer can be lost after
// the request was served, and a request can arrive after its sender gave up: the sender gets a timeout while the message travels on. Requests
// overtake each other, except on a Raft pipeline, which keeps its order as a connection does and breaks when a message on it is lost.
//
// # Determinism
//
// The fate of the nth message of a link follows from the seed. Which message is the nth depends on the scheduling of goroutines, so a seed
// repeats the kind of a run, but not every step of it.
//
// # Fake time
//
// The package works in a testing/synctest bubble: it waits on channels and timers made by the caller's goroutines only, and holds no lock
// while it waits. Close waits until the last message has arrived or is dropped.
//
// # Goroutines and locks
//
// There is one goroutine for each request under way and two for each pipeline; they end when their peer dies or the message has arrived.
// Network.mu guards links, peers and pauses and is held for a few map reads; no lock is taken under it.
package simnet
