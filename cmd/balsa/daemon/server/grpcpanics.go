package server

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/balsahq/balsa/fault"
)

// containCalls returns the interceptors that make a panic of a gRPC handler end its call only. Code that runs before and
// after a handler is contained by containTap and by the codec of package etcd.
func containCalls() []grpc.ServerOption {
	unary := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
		err = containCall(func() (err error) {
			answer, err = handler(ctx, req)
			return err
		})
		return answer, err
	}
	stream := func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return containCall(func() error { return handler(srv, s) })
	}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(unary), grpc.ChainStreamInterceptor(stream)}
}

// containTap makes a panic of a tap end its call only. A tap runs in the goroutine of the connection, outside of interceptors.
func containTap(next tap.ServerInHandle) tap.ServerInHandle {
	return func(ctx context.Context, info *tap.Info) (out context.Context, err error) {
		err = fault.Contain("gRPC", func() (err error) {
			out, err = next(ctx, info)
			return err
		})
		return out, internalStatus(err)
	}
}

func containCall(handle func() error) error {
	err := fault.Contain("gRPC", func() error {
		fault.Point("gRPC")
		return handle()
	})
	return internalStatus(err)
}

// internalStatus returns the status that the client gets for a panic; other errors are returned as they are.
func internalStatus(err error) error {
	if errors.Is(err, fault.ErrPanic) {
		return status.Error(codes.Internal, err.Error())
	}
	return err
}
