package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// authService is etcd's Auth service, which is turned off: client certificates authenticate callers. Every call about users
// and roles returns errNoUsers.
type authService struct{ *Server }

var errNoUsers = status.Error(codes.Unimplemented, "etcd API: there are no users and roles; callers are known by their client certificates")

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

// AuthDisable implements etcdserverpb.AuthServer: it is off already.
func (s *authService) AuthDisable(ctx context.Context, _ *pb.AuthDisableRequest) (*pb.AuthDisableResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	return &pb.AuthDisableResponse{Header: s.header(new(pb.ResponseHeader), s.store.View().Revision())}, nil
}

// AuthEnable implements etcdserverpb.AuthServer.
func (s *authService) AuthEnable(context.Context, *pb.AuthEnableRequest) (*pb.AuthEnableResponse, error) {
	return nil, errNoUsers
}

// UserAdd implements etcdserverpb.AuthServer.
func (s *authService) UserAdd(context.Context, *pb.AuthUserAddRequest) (*pb.AuthUserAddResponse, error) {
	return nil, errNoUsers
}

// UserGet implements etcdserverpb.AuthServer.
func (s *authService) UserGet(context.Context, *pb.AuthUserGetRequest) (*pb.AuthUserGetResponse, error) {
	return nil, errNoUsers
}

// UserList implements etcdserverpb.AuthServer.
func (s *authService) UserList(context.Context, *pb.AuthUserListRequest) (*pb.AuthUserListResponse, error) {
	return nil, errNoUsers
}

// UserDelete implements etcdserverpb.AuthServer.
func (s *authService) UserDelete(context.Context, *pb.AuthUserDeleteRequest) (*pb.AuthUserDeleteResponse, error) {
	return nil, errNoUsers
}

// UserChangePassword implements etcdserverpb.AuthServer.
func (s *authService) UserChangePassword(context.Context, *pb.AuthUserChangePasswordRequest) (*pb.AuthUserChangePasswordResponse, error) {
	return nil, errNoUsers
}

// UserGrantRole implements etcdserverpb.AuthServer.
func (s *authService) UserGrantRole(context.Context, *pb.AuthUserGrantRoleRequest) (*pb.AuthUserGrantRoleResponse, error) {
	return nil, errNoUsers
}

// UserRevokeRole implements etcdserverpb.AuthServer.
func (s *authService) UserRevokeRole(context.Context, *pb.AuthUserRevokeRoleRequest) (*pb.AuthUserRevokeRoleResponse, error) {
	return nil, errNoUsers
}

// RoleAdd implements etcdserverpb.AuthServer.
func (s *authService) RoleAdd(context.Context, *pb.AuthRoleAddRequest) (*pb.AuthRoleAddResponse, error) {
	return nil, errNoUsers
}

// RoleGet implements etcdserverpb.AuthServer.
func (s *authService) RoleGet(context.Context, *pb.AuthRoleGetRequest) (*pb.AuthRoleGetResponse, error) {
	return nil, errNoUsers
}

// RoleList implements etcdserverpb.AuthServer.
func (s *authService) RoleList(context.Context, *pb.AuthRoleListRequest) (*pb.AuthRoleListResponse, error) {
	return nil, errNoUsers
}

// RoleDelete implements etcdserverpb.AuthServer.
func (s *authService) RoleDelete(context.Context, *pb.AuthRoleDeleteRequest) (*pb.AuthRoleDeleteResponse, error) {
	return nil, errNoUsers
}

// RoleGrantPermission implements etcdserverpb.AuthServer.
func (s *authService) RoleGrantPermission(context.Context, *pb.AuthRoleGrantPermissionRequest) (*pb.AuthRoleGrantPermissionResponse, error) {
	return nil, errNoUsers
}

// RoleRevokePermission implements etcdserverpb.AuthServer.
func (s *authService) RoleRevokePermission(context.Context, *pb.AuthRoleRevokePermissionRequest) (*pb.AuthRoleRevokePermissionResponse, error) {
	return nil, errNoUsers
}
