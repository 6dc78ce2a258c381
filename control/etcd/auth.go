package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// authService is etcd's Auth service, switched off: who may use the API is said
// by client certificates. Users and roles are not implemented, and say so.
type authService struct {
	*Server
	pb.UnimplementedAuthServer
}

// AuthStatus implements etcdserverpb.AuthServer.
func (s *authService) AuthStatus(ctx context.Context, _ *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	return &pb.AuthStatusResponse{Header: s.header(new(pb.ResponseHeader), s.store.View().Revision())}, nil
}

// Authenticate implements etcdserverpb.AuthServer.
func (s *authService) Authenticate(context.Context, *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	return nil, rpctypes.ErrGRPCAuthNotEnabled
}

// AuthEnable implements etcdserverpb.AuthServer.
func (s *authService) AuthEnable(context.Context, *pb.AuthEnableRequest) (*pb.AuthEnableResponse, error) {
	return nil, status.Error(codes.Unimplemented, "etcd API: there are no users and roles; callers are known by their client certificates")
}

// AuthDisable implements etcdserverpb.AuthServer: it is off already.
func (s *authService) AuthDisable(ctx context.Context, _ *pb.AuthDisableRequest) (*pb.AuthDisableResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	return &pb.AuthDisableResponse{Header: s.header(new(pb.ResponseHeader), s.store.View().Revision())}, nil
}
