package etcd

import (
	"context"
	"errors"

	"github.com/balsahq/balsa/raftstore"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// wireErrors says what a client is told for an error of the store. Clients
// compare the text, so it is etcd's. The first match counts.
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

// wireCodes are for errors etcd has no name for.
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

// wireError turns an error of the store into what goes to the client. ctx is
// the caller's own context: when it still runs, a deadline that passed was ours.
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
