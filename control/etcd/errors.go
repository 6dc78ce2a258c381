package etcd

import (
	"context"
	"errors"

	"github.com/balsahq/balsa/raftstore"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// wireErrors maps errors of the store to etcd's errors. Clients compare the text, so it is exactly etcd's. The first match
// counts.
var wireErrors = []struct{ from, to error }{
	{raftstore.ErrCompacted, rpctypes.ErrGRPCCompacted},
	{raftstore.ErrOverrun, rpctypes.ErrGRPCCompacted},
	{raftstore.ErrFutureRevision, rpctypes.ErrGRPCFutureRev},
	{raftstore.ErrDuplicateKey, rpctypes.ErrGRPCDuplicateKey},
	{raftstore.ErrKeyNotFound, rpctypes.ErrGRPCKeyNotFound},
	{raftstore.ErrLeaseNotFound, rpctypes.ErrGRPCLeaseNotFound},
	{raftstore.ErrLeaseExists, rpctypes.ErrGRPCLeaseExist},
	{raftstore.ErrTooLarge, rpctypes.ErrGRPCRequestTooLarge},
	{raftstore.ErrDiskFull, rpctypes.ErrGRPCNoSpace},
	{raftstore.ErrNotLeader, rpctypes.ErrGRPCNotLeader},
	{raftstore.ErrNoLeader, rpctypes.ErrGRPCNoLeader},
	{raftstore.ErrUnreachable, rpctypes.ErrGRPCTimeoutDueToConnectionLost},
	{raftstore.ErrClosed, rpctypes.ErrGRPCStopped},
}

// wireCodes maps errors that etcd does not have to gRPC codes.
var wireCodes = []struct {
	from error
	code codes.Code
}{
	{raftstore.ErrInvalid, codes.InvalidArgument},
	{raftstore.ErrDiskReadOnly, codes.Unavailable},
	{raftstore.ErrDisk, codes.Unavailable},
	{raftstore.ErrCorrupt, codes.DataLoss},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
}

// wireError converts an error of the store to the error for the client. ctx is the caller's own context: if it has not
// ended, a deadline that passed was this server's.
func wireError(ctx context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return rpctypes.ErrGRPCTimeout
	}
	for _, w := range wireErrors {
		if errors.Is(err, w.from) {
			return w.to
		}
	}
	for _, w := range wireCodes {
		if errors.Is(err, w.from) {
			return status.Error(w.code, err.Error())
		}
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unknown, err.Error())
}
