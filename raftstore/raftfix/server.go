package raftfix

import (
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// Server is this server's Raft with what the corrections need beside it.
type Server struct {
	ID        string
	Raft      *raft.Raft
	Transport raft.Transport
	// LeaderChanged returns a channel that closes at the next change of the leader or the term.
	LeaderChanged func() <-chan struct{}
	// Spawn runs fn in a goroutine that ends before the store is closed. It returns false, and runs nothing, when the store
	// is closing.
	Spawn func(fn func()) bool
	// Closed is closed when the store begins to close.
	Closed <-chan struct{}
}

// Term is a term and its leader.
type Term struct {
	Leader string // server ID, empty when no leader is known
	Number uint64
	Here   bool // this server is the leader
}

// Term returns the current term and its leader as this server knows them.
//
// Raft's CurrentTerm, State and LeaderWithID are separate reads, so a leader of one term could be returned with the number
// of another; and a server that has stepped down can still name itself as the leader. Term repeats the reads until the term
// stayed the same, and never names this server unless it leads. TestALeaderThatWasReplacedAnswersNobody shows it.
func (s *Server) Term() Term {
	for {
		t := Term{Number: s.Raft.CurrentTerm()}
		_, id := s.Raft.LeaderWithID()
		t.Here = s.Raft.State() == raft.Leader
		switch {
		case t.Here:
			t.Leader = s.ID
		case string(id) != s.ID:
			t.Leader = string(id)
		}
		if s.Raft.CurrentTerm() == t.Number {
			return t
		}
	}
}

// Voters returns the IDs of all voters in Raft's configuration except the given one, sorted: every server computes the same
// order from the same configuration.
func (s *Server) Voters(except string) []string {
	var out []string
	for _, srv := range s.Raft.GetConfiguration().Configuration().Servers {
		if srv.Suffrage == raft.Voter && string(srv.ID) != except {
			out = append(out, string(srv.ID))
		}
	}
	slices.Sort(out)
	return out
}

// Sole reports whether this server is the only voter.
func (s *Server) Sole() bool {
	voters := s.Voters("")
	return len(voters) == 1 && voters[0] == s.ID
}

// emptyAppend returns an AppendEntries request without entries, as the leader of a term may send it at any time.
func (s *Server) emptyAppend(term uint64) *raft.AppendEntriesRequest {
	self := s.Transport.EncodePeer(raft.ServerID(s.ID), s.Transport.LocalAddr())
	return &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(s.ID), Addr: self},
		Term:      term,
		Leader:    self,
	}
}

// pause waits for d. It returns false when the store closes first.
func (s *Server) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.Closed:
		return false
	}
}
