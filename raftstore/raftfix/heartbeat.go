package raftfix

import (
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// TermLock is what Heartbeats needs of the log store.
type TermLock interface {
	// TryHoldTerm keeps the stored term from changing until release is called. It returns false while the term changes.
	TryHoldTerm() (release func(), ok bool)
	// Stopping is closed when writes that fail are no longer repeated: shortly before Raft is shut down.
	Stopping() <-chan struct{}
}

// Heartbeats is a transport that answers a heartbeat beside Raft's main goroutine only where that is safe.
//
// Upstream: Raft answers heartbeats beside its main goroutine, so that a slow disk does not make a server look dead. A
// heartbeat that meets a candidate makes it a follower of the heartbeat's term.
//
// Consequence: while the main goroutine enters the next term, such a heartbeat takes the term back, on disk and in memory.
// Entries are then stamped with the old term, or a second vote is given in one term.
//
// So only a follower of the heartbeat's own term answers beside the main goroutine, under a lock that keeps the term from
// changing. Every other heartbeat waits for the main goroutine like any request.
//
//	transport ─┬─ heartbeat, follower of its term ─▶ Raft, at once
//	           └─ anything else ─▶ queue ─▶ Raft's main goroutine
//
// TestAHeartbeatNeverTakesTheTermBack, TestNothingReachesRaftWhenTheDiskGivesUp and seed 3507 of TestSeedsThatFailedOnce show it.
type Heartbeats struct {
	Transport
	term  TermLock // nil: the log is in memory
	raft  atomic.Pointer[raft.Raft]
	queue chan raft.RPC
	ended <-chan struct{} // closed when Raft has ended
	stop  <-chan struct{} // TermLock.Stopping
}

// NewHeartbeats returns t with safe heartbeats. term is nil for a log in memory; ended closes when Raft has ended.
func NewHeartbeats(t Transport, term TermLock, ended <-chan struct{}) *Heartbeats {
	h := &Heartbeats{Transport: t, term: term, queue: make(chan raft.RPC), ended: ended}
	if term != nil {
		h.stop = term.Stopping()
	}
	return h
}

// Consumer implements raft.Transport.
func (h *Heartbeats) Consumer() <-chan raft.RPC { return h.queue }

// Run hands what the transport receives to r until Raft has ended.
func (h *Heartbeats) Run(r *raft.Raft) {
	h.raft.Store(r)
	in := h.Transport.Consumer()
	for {
		select {
		case rpc := <-in:
			h.Enqueue(withVotersID(rpc, r))
		case <-h.ended:
			return
		}
	}
}

// Enqueue hands rpc to Raft's main goroutine and drops it once failed writes are no longer repeated. From then on Raft may take
// its log for longer than it is, after it removed the log's end and could not write it anew, and would look for the missing
// entries if it heard that they are committed.
func (h *Heartbeats) Enqueue(rpc raft.RPC) {
	select {
	case <-h.stop:
		return
	default:
	}
	select {
	case h.queue <- rpc:
	case <-h.stop:
	case <-h.ended: // no answer, as Raft gives none when it has ended
	}
}

// SetHeartbeatHandler implements raft.Transport.
func (h *Heartbeats) SetHeartbeatHandler(fn func(raft.RPC)) {
	h.Transport.SetHeartbeatHandler(func(rpc raft.RPC) {
		if !h.answerBeside(rpc, fn) {
			h.Enqueue(rpc)
		}
	})
}

// answerBeside lets fn answer a heartbeat if this server is a follower in the heartbeat's term, and reports whether it did.
func (h *Heartbeats) answerBeside(rpc raft.RPC, fn func(raft.RPC)) bool {
	r := h.raft.Load()
	a, _ := rpc.Command.(*raft.AppendEntriesRequest)
	if a == nil || r == nil || h.term == nil {
		return false
	}
	release, ok := h.term.TryHoldTerm()
	if !ok {
		return false
	}
	defer release()
	if r.State() != raft.Follower || r.CurrentTerm() != a.Term {
		return false
	}
	fn(rpc)
	return true
}
