package raftstore

import (
	"fmt"
	"io"

	"github.com/hashicorp/raft"
)

// ballot is a transport whose requests for votes do not say the candidate's ID,
// only its address.
//
// By the ID a voter refuses candidates that have no vote in the configuration it
// knows. A learner that was just made a voter knows a newer one: if the leader
// dies before it has told the other voters, the log of the new voter is the
// longer, it is refused for its ID, and they are refused for their shorter logs,
// so that nobody is elected until the dead one is back. The Raft paper (section
// 6) lets servers vote for candidates outside their configuration for this very
// reason; who was removed cannot win, because its log lacks its removal, and
// does not disturb, because of pre-vote. The one that was made a voter may also
// be the one that has not heard of it: its vote is needed all the same.
type ballot struct{ raft.Transport }

// RequestVote implements raft.Transport.
func (b ballot) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	anonymous := *args
	anonymous.ID = nil
	return b.Transport.RequestVote(id, target, &anonymous, resp)
}

// RequestPreVote implements raft.WithPreVote. Here an ID without a vote is refused
// and none at all too, so it says the voter's own, for voters that do not replace
// it themselves (see count): the ID serves that check alone.
func (b ballot) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	t, ok := b.Transport.(raft.WithPreVote)
	if !ok {
		return fmt.Errorf("%w: %T carries no pre-votes", ErrInvalid, b.Transport)
	}
	neutral := *args
	neutral.ID = []byte(id)
	return t.RequestPreVote(id, target, &neutral, resp)
}

// count is a request as Raft may see it: one for a pre-vote carries the ID of a
// server that has a vote in the configuration r knows, which may be one without
// the candidate and without this server.
func count(rpc raft.RPC, r *raft.Raft) raft.RPC {
	asked, ok := rpc.Command.(*raft.RequestPreVoteRequest)
	if !ok || r == nil {
		return rpc
	}
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.Suffrage == raft.Voter {
			neutral := *asked // it is the sender's
			neutral.ID = []byte(s.ID)
			rpc.Command = &neutral
			break
		}
	}
	return rpc
}

// Close closes the transport if it can be closed.
func (b ballot) Close() error {
	if t, ok := b.Transport.(io.Closer); ok {
		return t.Close()
	}
	return nil
}
