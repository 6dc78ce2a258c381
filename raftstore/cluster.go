package raftstore

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/consensus"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

// Server is one entry of the Raft configuration, which alone decides which servers vote.
type Server struct {
	ID    string
	Voter bool // false: a learner, which gets the log and has no vote
}

// Progress is how far the log has come on this peer.
type Progress struct {
	Term                                 uint64
	LastIndex, CommitIndex, AppliedIndex uint64 // of the log; AppliedIndex counts entries that have an effect
	SnapshotIndex                        uint64
	LastContact                          time.Duration // since the last message of the leader; 0 on the leader
	Revision                             int64
}

// configTimeout bounds a change of the Raft configuration.
const configTimeout = 5 * time.Second

// Servers returns the Raft configuration as this peer knows it.
func (s *Store) Servers() ([]Server, error) {
	f := s.consensus.Raft().GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, s.consensus.Explain(err)
	}
	var out []Server
	for _, srv := range f.Configuration().Servers {
		out = append(out, Server{ID: string(srv.ID), Voter: srv.Suffrage == raft.Voter})
	}
	return out, nil
}

// Leader returns the term and the ServerID of its leader as this peer knows them; id is empty when it knows of no leader.
func (s *Store) Leader() (id string, number uint64) {
	t := s.consensus.Term()
	return t.Leader, t.Number
}

// Leading reports whether this peer leads and has applied everything of earlier terms.
func (s *Store) Leading() bool { return s.consensus.Leading() }

// LeaderChanged returns a channel that closes at the next change of leader or term. It may close without one.
func (s *Store) LeaderChanged() <-chan struct{} { return s.consensus.LeaderChanged() }

// Progress returns how far the log has come on this peer.
func (s *Store) Progress() Progress {
	r := s.consensus.Raft()
	p := Progress{Term: r.CurrentTerm(), LastIndex: r.LastIndex(), CommitIndex: r.CommitIndex(),
		AppliedIndex: s.machine.index.Load(), Revision: s.View().Revision()}
	if !s.consensus.Term().Here {
		p.LastContact = time.Since(r.LastContact())
	}
	return p
}

// Raft returns Raft, for the code that manages the membership. Everything else writes through Txn.
func (s *Store) Raft() *raft.Raft { return s.consensus.Raft() }

// Generation returns how often the cluster was begun anew from one survivor; the first generation is 1.
func (s *Store) Generation() int64 { return s.meta.Generation }

// Hash returns a checksum of the whole state, and the index of the last entry in it. Peers that have applied the same entries return
// the same.
func (s *Store) Hash() (index, sum uint64) {
	r := s.machine.root.Load()
	h := fnv.New64a()
	if _, err := mvcc.WriteSnapshotAt(h, r, r.Index, r.Term); err != nil {
		return r.Index, 0 // cannot happen: the compact revision is always readable
	}
	return r.Index, h.Sum64()
}

// AddLearner makes id a server without a vote; it is no error if it is in the configuration already. ErrNotLeader when this peer does
// not lead.
func (s *Store) AddLearner(ctx context.Context, id string) error {
	return s.reconfigure(ctx, id, func(r *raft.Raft, has *raft.Server) raft.Future {
		if has != nil {
			return nil
		}
		return r.AddNonvoter(raft.ServerID(id), raft.ServerAddress(id), 0, configTimeout)
	})
}

// Promote gives the learner id a vote.
func (s *Store) Promote(ctx context.Context, id string) error {
	return s.reconfigure(ctx, id, func(r *raft.Raft, has *raft.Server) raft.Future {
		if has != nil && has.Suffrage == raft.Voter {
			return nil
		}
		return r.AddVoter(raft.ServerID(id), raft.ServerAddress(id), 0, configTimeout)
	})
}

// Demote takes the vote of id and leaves it a learner.
func (s *Store) Demote(ctx context.Context, id string) error {
	return s.reconfigure(ctx, id, func(r *raft.Raft, has *raft.Server) raft.Future {
		if has == nil || has.Suffrage != raft.Voter {
			return nil
		}
		return r.DemoteVoter(raft.ServerID(id), 0, configTimeout)
	})
}

// Remove takes id out of the configuration.
func (s *Store) Remove(ctx context.Context, id string) error {
	return s.reconfigure(ctx, id, func(r *raft.Raft, has *raft.Server) raft.Future {
		if has == nil {
			return nil
		}
		return r.RemoveServer(raft.ServerID(id), 0, configTimeout)
	})
}

// reconfigure makes one change of the configuration and waits for it. change returns nil when there is nothing to change. Raft itself
// refuses a change that leaves no voter.
func (s *Store) reconfigure(ctx context.Context, id string, change func(*raft.Raft, *raft.Server) raft.Future) error {
	if id == "" {
		return fmt.Errorf("%w: no server is named", ErrInvalid)
	}
	if !s.consensus.Leading() {
		return ErrNotLeader
	}
	var has *raft.Server
	servers := s.consensus.Raft().GetConfiguration().Configuration().Servers
	for i := range servers {
		if string(servers[i].ID) == id {
			has = &servers[i]
		}
	}
	f := change(s.consensus.Raft(), has)
	if f == nil {
		return nil
	}
	return s.consensus.Await(ctx, f)
}

// TransferLeadership makes the voter `to` lead, or the first voter that has the whole log when `to` is empty. ErrNotLeader when this
// peer does not lead.
func (s *Store) TransferLeadership(ctx context.Context, to string) error {
	if !s.consensus.Leading() {
		return ErrNotLeader
	}
	if to == s.ServerID() {
		return nil
	}
	return s.consensus.Transfer(ctx, to)
}

var _ Handler = (*Store)(nil)

// Forwarded implements [Handler].
func (s *Store) Forwarded(_ context.Context, b Batch) error { return s.consensus.Forwarded(b) }

// ServeReadIndex implements [Handler].
func (s *Store) ServeReadIndex(ctx context.Context) (uint64, error) {
	return s.consensus.ReadIndex(ctx)
}

// ServeKeepAlive implements [Handler].
func (s *Store) ServeKeepAlive(ctx context.Context, id mvcc.LeaseID) (time.Duration, error) {
	return s.asLeader(ctx, id, s.lessor.renew)
}

// PeerEnded implements [Handler]. It returns at once. If that server led, one of the other voters stands for election at once and
// the next after it a moment later: see raftfix.Succession.
func (s *Store) PeerEnded(serverID string) { s.consensus.PeerEnded(serverID) }

// asLeader returns the lessor's answer if this peer was the leader when the lessor gave it. A leader that was replaced and does not
// know it would report that a lease has ended, or renew a lease without effect.
func (s *Store) asLeader(ctx context.Context, id mvcc.LeaseID, fn func(uint64, mvcc.LeaseID) (time.Duration, bool)) (time.Duration, error) {
	t := s.consensus.Term()
	if !t.Here || !s.consensus.Leading() {
		return 0, ErrNotLeader
	}
	ttl, ok := fn(t.Number, id)
	if err := s.consensus.StillLeads(ctx, t); err != nil {
		return 0, err
	}
	if !ok {
		return 0, fmt.Errorf("%w: %x", ErrLeaseNotFound, int64(id))
	}
	return ttl, nil
}

// ServeLeaseRemaining implements [Handler].
func (s *Store) ServeLeaseRemaining(ctx context.Context, id mvcc.LeaseID) (time.Duration, error) {
	return s.asLeader(ctx, id, s.lessor.remaining)
}

// askLeader asks the leader, which is this peer or another, and asks again while there is no answer, for LeaderPatience at most.
func (s *Store) askLeader(ctx context.Context, here func() (time.Duration, error), there func(leader string) (time.Duration, error)) (time.Duration, error) {
	deadline := time.Now().Add(consensus.LeaderPatience)
	for {
		changed := s.consensus.LeaderChanged()
		t := s.consensus.Term()
		d, err := time.Duration(0), ErrNoLeader
		switch {
		case t.Here:
			d, err = here()
		case t.Leader != "" && s.cfg.Peers != nil:
			d, err = there(t.Leader)
		}
		again := errors.Is(err, ErrNotLeader) || errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNoLeader)
		if !again {
			return d, err
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("%w: waited %v: %w", ErrNoLeader, consensus.LeaderPatience, err)
		}
		select {
		case <-changed:
		case <-time.After(5 * consensus.FailPause):
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-s.consensus.Closed():
			return 0, ErrClosed
		}
	}
}
