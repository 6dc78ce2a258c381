// Package simnet owns a network in memory, for tests that run several peers in
// one process: it loses, delays, repeats and reorders, it is cut one way or
// both ways, and its peers die, stop for a while and come back.
//
//	 raft ──▶ Transport ─┐                              ┌─▶ Consumer ──▶ raft
//	                     ├─▶ link A→B: delay, loss, cut ─┤
//	store ──▶ Peers ─────┘   link B→A: the answers       └─▶ Handler ──▶ store
//
// Addresses are server IDs. A request and its answer travel separately, each by
// the link of its own direction, so an answer can be lost after the request was
// served, and a request can arrive after its sender gave up: whoever waits is
// told that the time is over, while the message goes on. Requests overtake each
// other, except on a Raft pipeline, which keeps its order as a connection does
// and breaks when anything on it is lost.
//
// # Determinism
//
// What befalls the nth message of a link follows from the seed. Which message
// is the nth depends on how goroutines are scheduled, so a run can be repeated
// in kind but not bit for bit.
//
// # Fake time
//
// Everything here may live in a testing/synctest bubble: all waiting is on
// channels and timers made by the caller's goroutines, and no lock is held
// while waiting. Close waits until the last message has arrived or is dropped.
//
// # Goroutines and locks
//
// One goroutine for each request under way, two for each pipeline; all end when
// the peer they work for dies or the message has arrived. Network.mu guards
// links, peers and pauses and is held for a few map reads; nothing is locked
// below it.
package simnet
