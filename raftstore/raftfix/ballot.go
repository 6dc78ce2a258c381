package raftfix

import (
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/errdefs"
)

// Transport is a Raft transport that carries pre-votes and can be closed.
type Transport interface {
	raft.Transport
	raft.WithPreVote
	io.Closer
}

// Ballot is a transport whose requests for votes carry the candidate's address and not its ID.
//
// Upstream: a voter refuses a candidate whose ID has no vote in the configuration that the voter knows.
//
// Consequence: a learner that was just promoted has the newer configuration. If the leader dies before it has told the other
// voters, the new voter has the longest log and is refused for its ID, and the other voters are refused for their shorter
// logs. No leader is elected until the dead one is back. The Raft paper (section 6) lets servers vote for candidates outside
// their configuration for this reason. A removed server cannot win, because its log lacks its own removal, and it does not
// disturb the others, because of pre-vote.
//
// TestALeaderLostWhileAVoteIsGivenIsReplaced and TestAVoterThatDoesNotKnowThatItIsOneVotes show it.
type Ballot struct{ raft.Transport }

var _ Transport = Ballot{}

// RequestVote implements raft.Transport.
func (b Ballot) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	anonymous := *args
	anonymous.ID = nil
	return b.Transport.RequestVote(id, target, &anonymous, resp)
}

// RequestPreVote implements raft.WithPreVote. A voter refuses a pre-vote with the ID of a non-voter and one without an ID, and
// uses the ID for nothing else. So the request carries the receiver's own ID, for receivers that do not replace it themselves
// (see withVotersID).
func (b Ballot) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	t, ok := b.Transport.(raft.WithPreVote)
	if !ok {
		return fmt.Errorf("%w: %T carries no pre-votes", errdefs.ErrInvalid, b.Transport)
	}
	neutral := *args
	neutral.ID = []byte(id)
	return t.RequestPreVote(id, target, &neutral, resp)
}

// withVotersID returns rpc as Raft may see it: a request for a pre-vote gets the ID of some voter of the configuration that r
// knows. That configuration may have neither the candidate nor this server as a voter: a server that has not heard of its own
// promotion must vote too.
func withVotersID(rpc raft.RPC, r *raft.Raft) raft.RPC {
	asked, ok := rpc.Command.(*raft.RequestPreVoteRequest)
	if !ok || r == nil {
		return rpc
	}
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.Suffrage == raft.Voter {
			neutral := *asked // the sender may still use asked
			neutral.ID = []byte(s.ID)
			rpc.Command = &neutral
			break
		}
	}
	return rpc
}

// Close closes the transport if it can be closed.
func (b Ballot) Close() error {
	if t, ok := b.Transport.(io.Closer); ok {
		return t.Close()
	}
	return nil
}
