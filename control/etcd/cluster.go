package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// clusterService is etcd's Cluster service. Members are changed by Balsa's own commands, which also handle certificates and
// quorum.
type clusterService struct{ *Server }

var errMembers = status.Error(codes.Unimplemented,
	"etcd API: members are added by `balsa server --join` and changed by `balsa members`, not over etcd's API")

// MemberList implements etcdserverpb.ClusterServer.
func (s *clusterService) MemberList(ctx context.Context, r *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	v, err := s.newest(ctx, !r.Linearizable)
	if err != nil {
		return nil, err
	}
	res := &pb.MemberListResponse{Header: s.header(new(pb.ResponseHeader), v.Revision())}
	for _, m := range s.cfg.Members() {
		res.Members = append(res.Members, &pb.Member{
			ID: shortID(m.ServerID), Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, IsLearner: m.Learner,
		})
	}
	return res, nil
}

// refuse answers a change of the membership.
func (s *clusterService) refuse(ctx context.Context) error {
	if err := s.authorize(ctx); err != nil {
		return err
	}
	return errMembers
}

// MemberAdd implements etcdserverpb.ClusterServer.
func (s *clusterService) MemberAdd(ctx context.Context, _ *pb.MemberAddRequest) (*pb.MemberAddResponse, error) {
	return nil, s.refuse(ctx)
}

// MemberRemove implements etcdserverpb.ClusterServer.
func (s *clusterService) MemberRemove(ctx context.Context, _ *pb.MemberRemoveRequest) (*pb.MemberRemoveResponse, error) {
	return nil, s.refuse(ctx)
}

// MemberUpdate implements etcdserverpb.ClusterServer.
func (s *clusterService) MemberUpdate(ctx context.Context, _ *pb.MemberUpdateRequest) (*pb.MemberUpdateResponse, error) {
	return nil, s.refuse(ctx)
}

// MemberPromote implements etcdserverpb.ClusterServer.
func (s *clusterService) MemberPromote(ctx context.Context, _ *pb.MemberPromoteRequest) (*pb.MemberPromoteResponse, error) {
	return nil, s.refuse(ctx)
}
