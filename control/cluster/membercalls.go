package cluster

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

// onLeaderAsAdmin checks that the caller is an administrator or a server, and has the leader answer the call.
func onLeaderAsAdmin[Q, A any](ctx context.Context, s *Service, req Q, here func(context.Context, Q) (A, error),
	there func(clusterpb.ClusterClient, context.Context) (A, error)) (A, error) {
	if _, err := s.authorize(ctx, managers); err != nil {
		var none A
		return none, err
	}
	return callOnLeader(ctx, s, func(ctx context.Context) (A, error) { return here(ctx, req) },
		func(ctx context.Context, c clusterpb.ClusterClient) (A, error) { return there(c, ctx) })
}

// resolveServer returns the ID of the server that a reference names, and the configuration in which it was found.
func (s *Service) resolveServer(ref string) (string, []raftstore.Server, error) {
	servers, err := s.cfg.Store.Servers()
	if err != nil {
		return "", nil, err
	}
	id, err := findServer(ref, servers, Records(s.cfg.Store.View()))
	return id, servers, err
}

// Promote implements clusterpb.ClusterServer.
func (s *Service) Promote(ctx context.Context, r *clusterpb.PromoteRequest) (*clusterpb.PromoteResponse, error) {
	return onLeaderAsAdmin(ctx, s, r, s.promote, func(c clusterpb.ClusterClient, ctx context.Context) (*clusterpb.PromoteResponse, error) {
		return c.Promote(ctx, r)
	})
}

func (s *Service) promote(ctx context.Context, r *clusterpb.PromoteRequest) (*clusterpb.PromoteResponse, error) {
	id, servers, err := s.resolveServer(r.Server)
	if err == nil && (!r.Force || !inConfiguration(servers, id)) {
		err = checkPromotion(servers, id)
	}
	if err != nil {
		return nil, err
	}
	return &clusterpb.PromoteResponse{}, s.cfg.Store.Promote(ctx, id)
}

// Demote implements clusterpb.ClusterServer.
func (s *Service) Demote(ctx context.Context, r *clusterpb.DemoteRequest) (*clusterpb.DemoteResponse, error) {
	return onLeaderAsAdmin(ctx, s, r, s.demote, func(c clusterpb.ClusterClient, ctx context.Context) (*clusterpb.DemoteResponse, error) {
		return c.Demote(ctx, r)
	})
}

func (s *Service) demote(ctx context.Context, r *clusterpb.DemoteRequest) (*clusterpb.DemoteResponse, error) {
	id, servers, err := s.resolveServer(r.Server)
	if err == nil {
		err = checkVoterLoss(servers, s.cfg.Members.Members(), s.cfg.Store.ServerID(), id)
	}
	if err == nil {
		err = s.handOverLeadership(ctx, id)
	}
	if err != nil {
		return nil, err
	}
	return &clusterpb.DemoteResponse{}, s.cfg.Store.Demote(ctx, id)
}

// handOverLeadership hands the leadership over when id is the leader, which is this server. It returns ErrNotLeader then, so that
// the call is repeated at the next leader.
func (s *Service) handOverLeadership(ctx context.Context, id string) error {
	if id != s.cfg.Store.ServerID() {
		return nil
	}
	if err := s.cfg.Store.TransferLeadership(ctx, ""); err != nil {
		return err
	}
	return raftstore.ErrNotLeader
}

// Remove implements clusterpb.ClusterServer.
func (s *Service) Remove(ctx context.Context, r *clusterpb.RemoveRequest) (*clusterpb.RemoveResponse, error) {
	return onLeaderAsAdmin(ctx, s, r, s.remove, func(c clusterpb.ClusterClient, ctx context.Context) (*clusterpb.RemoveResponse, error) {
		return c.Remove(ctx, r)
	})
}

func (s *Service) remove(ctx context.Context, r *clusterpb.RemoveRequest) (*clusterpb.RemoveResponse, error) {
	v, err := s.cfg.Store.Barrier(ctx)
	if err != nil {
		return nil, err
	}
	id, servers, err := s.resolveServer(r.Member)
	if err != nil {
		if v.Get(nodesPrefix+r.Member) != nil {
			return &clusterpb.RemoveResponse{}, s.removeAgent(ctx, r)
		}
		return nil, err
	}
	gossip := s.cfg.Members.Members()
	if state, ok := gossipState(gossip, id); ok && state == member.StateAlive && !r.Force {
		return nil, fmt.Errorf("server %s is alive: run `balsa members leave` there, or remove it with --force: %w", short(id), ErrHarm)
	}
	if err := checkVoterLoss(servers, gossip, s.cfg.Store.ServerID(), id); err != nil {
		return nil, err
	}
	if err := s.handOverLeadership(ctx, id); err != nil {
		return nil, err
	}
	return &clusterpb.RemoveResponse{}, s.removeServer(ctx, id)
}

// removedRecord is the record of a server that was removed for good. It must not come back with its old log.
type removedRecord struct {
	Name    string    `json:"name"`
	Removed time.Time `json:"removed"`
}

func (s *Service) removeServer(ctx context.Context, id string) error {
	if err := s.cfg.Store.Remove(ctx, id); err != nil {
		return err
	}
	err := s.attempt(ctx, func(v *raftstore.View) (*raftstore.Txn, error) {
		op, err := put(removedPrefix+id, removedRecord{Name: Records(v)[id].Name, Removed: s.cfg.Now().UTC()})
		return &raftstore.Txn{Success: []raftstore.Op{op, del(membersPrefix + id)}}, err
	})
	if err == nil {
		s.cfg.Logger.Info("a server was removed", "server", id)
	}
	return err
}

func (s *Service) removeAgent(ctx context.Context, r *clusterpb.RemoveRequest) error {
	for _, m := range s.allMembers(s.cfg.Store.View()) {
		if m.Name == r.Member && m.ServerID == "" && m.State == member.StateAlive && !r.Force {
			return fmt.Errorf("agent %q is alive: stop it first, or remove it with --force: %w", r.Member, ErrHarm)
		}
	}
	err := s.forgetAgent(ctx, r.Member)
	if err == nil {
		s.cfg.Logger.Info("an agent was removed", "name", r.Member)
	}
	return err
}

// forgetAgent removes an agent's record and revokes its certificates.
func (s *Service) forgetAgent(ctx context.Context, name string) error {
	return s.attempt(ctx, func(v *raftstore.View) (*raftstore.Txn, error) {
		rec, rev, err := read[nodeRecord](v, nodesPrefix+name)
		if err != nil || rec == nil {
			return nil, err
		}
		txn := &raftstore.Txn{Compares: []raftstore.Compare{raftstore.ModRevisionIs(nodesPrefix+name, rev)}, Success: []raftstore.Op{del(nodesPrefix + name)}}
		return txn, revoke(v, txn, name, *rec, s.cfg.Now())
	})
}

// Transfer implements clusterpb.ClusterServer.
func (s *Service) Transfer(ctx context.Context, r *clusterpb.TransferRequest) (*clusterpb.TransferResponse, error) {
	_, err := onLeaderAsAdmin(ctx, s, r, s.transfer, func(c clusterpb.ClusterClient, ctx context.Context) (*clusterpb.TransferResponse, error) {
		return c.Transfer(ctx, r)
	})
	if err != nil {
		return nil, err
	}
	leader, _ := s.cfg.Store.Leader()
	return &clusterpb.TransferResponse{LeaderId: leader}, nil
}

func (s *Service) transfer(ctx context.Context, r *clusterpb.TransferRequest) (*clusterpb.TransferResponse, error) {
	id := ""
	if r.Server != "" {
		ref, servers, err := s.resolveServer(r.Server)
		if err != nil {
			return nil, err
		}
		if id = ref; !isVoter(servers, id) {
			return nil, fmt.Errorf("server %s has no vote and cannot lead: `balsa members promote %s` first: %w", short(id), short(id), ErrHarm)
		}
	}
	return &clusterpb.TransferResponse{}, s.cfg.Store.TransferLeadership(ctx, id)
}

func isVoter(servers []raftstore.Server, id string) bool {
	for _, s := range servers {
		if s.ID == id {
			return s.Voter
		}
	}
	return false
}

// Leave implements clusterpb.ClusterServer.
func (s *Service) Leave(ctx context.Context, r *clusterpb.LeaveRequest) (*clusterpb.LeaveResponse, error) {
	who, err := s.authorize(ctx, members)
	if err != nil {
		return nil, err
	}
	if who.kind == nodeCaller {
		return &clusterpb.LeaveResponse{}, wire(s.forgetAgent(ctx, who.id))
	}
	own := s.cfg.Store.ServerID()
	if r.ServerId != own {
		return nil, status.Errorf(codes.FailedPrecondition, "this is server %s, not %s: ask the one that is to leave", short(own), short(r.ServerId))
	}
	req := &clusterpb.RemoveRequest{Member: own, Force: true}
	_, err = callOnLeader(ctx, s, func(ctx context.Context) (*clusterpb.RemoveResponse, error) { return s.remove(ctx, req) },
		func(ctx context.Context, c clusterpb.ClusterClient) (*clusterpb.RemoveResponse, error) {
			return c.Remove(ctx, req)
		})
	if err != nil {
		return nil, err
	}
	if s.cfg.Left != nil {
		s.cfg.Left()
	}
	return &clusterpb.LeaveResponse{}, nil
}
