package probe

import (
	"context"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// grpcCheck succeeds when the server at addr says SERVING by the gRPC health checking protocol (grpc.health.v1).
func grpcCheck(ctx context.Context, addr, service string, timeout time.Duration) outcome {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithUserAgent(userAgent),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer().DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		return failed("error: failed to connect service at %q: %+v", addr, err)
	}
	defer conn.Close()
	if !connected(ctx, conn) {
		return failed("timeout: failed to connect service %q within %v: %+v", addr, timeout, ctx.Err())
	}
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return failed("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s", status.Convert(err).Message())
	case status.Code(err) == codes.DeadlineExceeded, errors.Is(err, context.DeadlineExceeded):
		return failed("timeout: health rpc did not complete within %v", timeout)
	case err != nil:
		return failed("error: health rpc probe failed: %+v", err)
	case answer.GetStatus() != healthpb.HealthCheckResponse_SERVING:
		return failed("service unhealthy (responded with %q)", answer.GetStatus().String())
	}
	return outcome{result: Success, output: "service healthy"}
}

// connected waits until conn is ready; false when ctx ends first.
func connected(ctx context.Context, conn *grpc.ClientConn) bool {
	conn.Connect()
	for {
		state := conn.GetState()
		if state == connectivity.Ready {
			return true
		}
		if state == connectivity.Idle {
			conn.Connect()
		}
		if !conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
}
