package raftstore

import (
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// heartbeats is a transport that hands heartbeats to Raft where that is safe.
//
// Raft answers a heartbeat beside its main goroutine, so that a slow disk does
// not make a peer look dead. But one that meets a candidate makes it a follower
// of the heartbeat's term, while the main goroutine enters the next: the term
// then goes back, on disk and in memory, and entries are stamped with it or a
// second vote is given. So only a follower of that very term answers beside,
// under a lock that keeps the term from changing meanwhile (see disk.SetUint64);
// all other heartbeats wait for the main goroutine, like any request.
//
//	transport ─┬─ heartbeat, follower of its term ─▶ Raft, at once
//	           └─ anything else ─▶ queue ─▶ Raft's main goroutine
type heartbeats struct {
	acks
	raft  atomic.Pointer[raft.Raft]
	queue chan raft.RPC
	done  <-chan struct{} // closed when Raft has ended
	stop  <-chan struct{} // closed when it is about to: writes may fail from then on
}

func newHeartbeats(t raft.Transport, d *disk) *heartbeats {
	h := &heartbeats{acks: acks{ballot{t}, d}, queue: make(chan raft.RPC)}
	if d != nil {
		h.stop = d.stop
	}
	return h
}

// relay lets h serve Raft from now on, until Raft has ended.
func (c *consensus) relay(h *heartbeats) {
	h.raft.Store(c.raft)
	c.beats = h
	c.tasks.Add(1)
	go func() {
		defer c.end()
		h.relay()
	}()
}

// Consumer implements raft.Transport.
func (h *heartbeats) Consumer() <-chan raft.RPC { return h.queue }

// relay brings what the transport received to the queue until done is closed.
func (h *heartbeats) relay() {
	in := h.Transport.Consumer()
	for {
		select {
		case rpc := <-in:
			h.enqueue(count(rpc, h.raft.Load()))
		case <-h.done:
			return
		}
	}
}

// enqueue hands rpc to Raft's main goroutine, until the disk gives up waiting for
// writes. After an end of the log that was removed and could not be written anew,
// Raft takes its log for longer than it is, and would look for the missing entries
// if somebody told it that they are committed.
func (h *heartbeats) enqueue(rpc raft.RPC) {
	select {
	case <-h.stop:
		return
	default:
	}
	select {
	case h.queue <- rpc:
	case <-h.stop:
	case <-h.done: // as Raft does, which answers nobody when it has ended
	}
}

// SetHeartbeatHandler implements raft.Transport.
func (h *heartbeats) SetHeartbeatHandler(fn func(raft.RPC)) {
	h.Transport.SetHeartbeatHandler(func(rpc raft.RPC) {
		if !h.beside(rpc, fn) {
			h.enqueue(rpc)
		}
	})
}

// beside lets fn answer a heartbeat if this peer follows in its term.
func (h *heartbeats) beside(rpc raft.RPC, fn func(raft.RPC)) bool {
	r, a := h.raft.Load(), (*raft.AppendEntriesRequest)(nil)
	if a, _ = rpc.Command.(*raft.AppendEntriesRequest); a == nil || r == nil || h.disk == nil {
		return false
	}
	if !h.disk.term.TryRLock() {
		return false // the term changes now
	}
	defer h.disk.term.RUnlock()
	if r.State() != raft.Follower || r.CurrentTerm() != a.Term {
		return false
	}
	fn(rpc)
	return true
}
