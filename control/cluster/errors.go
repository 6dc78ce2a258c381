package cluster

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster/archive"
	"github.com/balsahq/balsa/control/cluster/token"
	"github.com/balsahq/balsa/raftstore"
)

// codeOf maps errors to gRPC codes; the first match counts.
var codeOf = []struct {
	err  error
	code codes.Code
}{
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{ErrNameTaken, codes.AlreadyExists},
	{ErrVersion, codes.FailedPrecondition},
	{ErrRemoved, codes.FailedPrecondition},
	{ErrHarm, codes.FailedPrecondition},
	{ErrUnknown, codes.NotFound},
	{ErrToken, codes.Unauthenticated},
	{token.ErrForm, codes.InvalidArgument},
	{pki.ErrBadRequest, codes.InvalidArgument},
	{archive.ErrDamaged, codes.InvalidArgument},
	{archive.ErrWrongKey, codes.FailedPrecondition},
	{archive.ErrNewer, codes.FailedPrecondition},
	{raftstore.ErrCorrupt, codes.InvalidArgument},
	{raftstore.ErrNewerVersion, codes.FailedPrecondition},
	{raftstore.ErrNotLeader, codes.Unavailable},
	{raftstore.ErrNoLeader, codes.Unavailable},
	{raftstore.ErrUnreachable, codes.Unavailable},
	{raftstore.ErrClosed, codes.Unavailable},
	{raftstore.ErrDiskFull, codes.ResourceExhausted},
	{raftstore.ErrDiskReadOnly, codes.ResourceExhausted},
	{raftstore.ErrInvalid, codes.InvalidArgument},
}

// wire converts an error to a gRPC status. An error that has a code keeps it.
func wire(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	for _, row := range codeOf {
		if errors.Is(err, row.err) {
			return status.Error(row.code, err.Error())
		}
	}
	return status.Error(codes.Internal, err.Error())
}
