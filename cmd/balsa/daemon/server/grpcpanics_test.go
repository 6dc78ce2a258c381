package server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/etcd"
	"github.com/balsahq/balsa/fault"
)

// panicking panics in the first call of each method.
type panicking struct {
	clusterpb.UnimplementedClusterServer
	listed, streamed bool // clients of the test make one call at a time
}

func (p *panicking) ListTokens(context.Context, *clusterpb.ListTokensRequest) (*clusterpb.ListTokensResponse, error) {
	if !p.listed {
		p.listed = true
		panic("a token nobody expected")
	}
	return &clusterpb.ListTokensResponse{Tokens: []*clusterpb.TokenInfo{{Id: "t"}}}, nil
}

func (p *panicking) Servers(_ *clusterpb.ServersRequest, s grpc.ServerStreamingServer[clusterpb.ServerList]) error {
	if err := s.Send(&clusterpb.ServerList{}); err != nil {
		return err
	}
	if !p.streamed {
		p.streamed = true
		panic("half a list")
	}
	return nil
}

// TestAPanicEndsOneCall: in a handler of one answer, of a stream, and before any handler; on a connection of gRPC's own and
// on one of net/http.
func TestAPanicEndsOneCall(t *testing.T) {
	t.Run("gRPC's listener", func(t *testing.T) {
		tapped := false
		server := panickingServer(grpc.InTapHandle(containTap(func(ctx context.Context, _ *tap.Info) (context.Context, error) {
			if !tapped {
				tapped = true
				panic("a caller nobody expected")
			}
			return ctx, nil
		})))
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		t.Cleanup(func() { server.Stop(); <-served })
		client := clusterClientOf(t, listener.Addr().String(), insecure.NewCredentials())
		if _, err := client.ListTokens(t.Context(), &clusterpb.ListTokensRequest{}); err == nil || status.Code(err) == codes.Unavailable {
			t.Errorf("a call whose tap panics ends with %v", err)
		}
		eachCallEnds(t, client)
	})
	t.Run("ServeHTTP", func(t *testing.T) {
		server := httptest.NewUnstartedServer(panickingServer())
		server.EnableHTTP2 = true
		server.StartTLS()
		t.Cleanup(server.Close)
		eachCallEnds(t, clusterClientOf(t, server.Listener.Addr().String(), credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	})
}

func panickingServer(more ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append(append(etcd.ServerOptions(0), containCalls()...), more...)...)
	clusterpb.RegisterClusterServer(server, &panicking{})
	return server
}

func clusterClientOf(t *testing.T, addr string, creds credentials.TransportCredentials) clusterpb.ClusterClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return clusterpb.NewClusterClient(conn)
}

// eachCallEnds makes each call twice: one that panics, is counted and answered with Internal, and one that is served.
func eachCallEnds(t *testing.T, client clusterpb.ClusterClient) {
	t.Helper()
	before := fault.Counts()["gRPC"]
	for what, call := range map[string]func() error{
		"one answer": func() error {
			_, err := client.ListTokens(t.Context(), &clusterpb.ListTokensRequest{})
			return err
		},
		"a stream": func() error {
			stream, err := client.Servers(t.Context(), &clusterpb.ServersRequest{})
			for err == nil {
				_, err = stream.Recv()
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "panic in gRPC") {
			t.Errorf("%s: a panic is answered with %v", what, err)
		}
		if err := call(); err != nil {
			t.Errorf("%s: the next call is not served: %v", what, err)
		}
	}
	if n := fault.Counts()["gRPC"] - before; n != 2 {
		t.Errorf("%d panics were counted, want 2", n)
	}
}
