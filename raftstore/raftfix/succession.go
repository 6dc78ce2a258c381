package raftfix

import (
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// heirPause is how long each heir waits for the heir before it. An election takes less, and a server that voted late follows
// the new leader by then.
const heirPause = 100 * time.Millisecond

// Succession replaces a leader whose process has ended.
//
// Upstream: a follower notices a dead leader by missed heartbeats only.
//
// Consequence: either heartbeats are impatient, and a busy machine loses its leadership without need, or the cluster is without
// a leader for as long as a patient heartbeat takes.
//
// When the process of the leader ends while its machine still runs, its port refuses connections, which is proof. The voters
// then stand for election one after another, in the order of their IDs. A mistaken report costs an election and never a write.
// TestAPeerWhoseProcessEndedIsSucceededAtOnce and TestAFalseReportOfAnEndLosesNothing show it.
type Succession struct {
	Server *Server
	// Requests is the queue of this server's own Raft.
	Requests *Heartbeats
}

// PeerEnded handles the report that the process of server id has ended. It returns at once, and does nothing unless that server
// leads and this one is a voter.
func (s *Succession) PeerEnded(id string) {
	t := s.Server.Term()
	if t.Leader != id || t.Here {
		return
	}
	place := slices.Index(s.Server.Voters(id), s.Server.ID)
	if place < 0 {
		return
	}
	s.Server.Spawn(func() { s.standAfter(time.Duration(place)*heirPause, t) })
}

// standAfter stands for election after wait, unless another server leads by then. Raft is asked with TimeoutNow, as if the
// leader had handed over: the voters then vote although they have missed no heartbeat.
func (s *Succession) standAfter(wait time.Duration, dead Term) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for waiting := true; waiting; {
		changed := s.Server.LeaderChanged()
		if now := s.Server.Term(); now != dead && now.Leader != "" { // also the same leader, if it is back
			return
		}
		select {
		case <-timer.C:
			waiting = false
		case <-changed:
		case <-s.Server.Closed:
			return
		}
	}
	answer := make(chan raft.RPCResponse, 1) // Raft's answer is not read
	s.Requests.Enqueue(raft.RPC{Command: &raft.TimeoutNowRequest{RPCHeader: s.Server.emptyAppend(0).RPCHeader}, RespChan: answer})
}
