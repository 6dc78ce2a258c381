package raftstore

import (
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// turn is how long each heir waits for the one before it: an election takes
// less, and who voted late is a follower of the new leader by then.
const turn = 100 * time.Millisecond

// PeerEnded tells the store that the process of a peer has ended, while its
// machine still runs and refuses connections. If that peer led, one of the others
// stands for election at once, the next after it a moment later: nobody waits for
// a heartbeat to be missed, so heartbeats need not be impatient to have a killed
// leader replaced soon. A mistake costs an election, never a write. It returns at
// once.
func (s *Store) PeerEnded(serverID string) {
	c := s.consensus
	t := c.who()
	if t.leader != serverID || t.here {
		return
	}
	place := c.place(serverID)
	if place < 0 {
		return
	}
	c.spawn(func() { c.succeed(t, time.Duration(place)*turn) })
}

// place is this peer's among the voters that may follow a leader, -1 when it has
// no vote. Everybody counts the same way, so that they do not stand at once and
// share the votes.
func (c *consensus) place(leader string) int {
	return slices.Index(c.heirs(leader), c.id)
}

// succeed stands for election after wait, unless by then somebody else leads or
// stands. It does so as if the leader had handed over: the others vote although
// they have not missed a heartbeat.
func (c *consensus) succeed(dead term, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for waiting := true; waiting; {
		changed := c.lead.next()
		if now := c.who(); now != dead && now.leader != "" { // the same one too, if it is back
			return
		}
		select {
		case <-timer.C:
			waiting = false
		case <-changed:
		case <-c.closed:
			return
		}
	}
	answer := make(chan raft.RPCResponse, 1)
	c.beats.enqueue(raft.RPC{Command: &raft.TimeoutNowRequest{RPCHeader: c.message(0).RPCHeader}, RespChan: answer})
}
