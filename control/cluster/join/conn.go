package join

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// plain leaves out the dress of gRPC's errors.
func plain(err error) error {
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		return &Refusal{Code: s.Code(), Text: s.Message()}
	}
	return err
}

// Refusal is the answer of a server that did not do what was asked.
type Refusal struct {
	Code codes.Code
	Text string
}

// Error is what the server said.
func (r *Refusal) Error() string { return r.Text }

// GRPCStatus makes status.Code work on it.
func (r *Refusal) GRPCStatus() *status.Status { return status.New(r.Code, r.Text) }

// pinnedConn shakes hands before gRPC has the connection, so that its errors stay what they are.
func pinnedConn(ctx context.Context, target string, config *tls.Config) (*tls.Conn, error) {
	dialer := &tls.Dialer{Config: config}
	conn, err := dialer.DialContext(ctx, "tcp", target)
	if err != nil {
		return nil, err
	}
	return conn.(*tls.Conn), nil
}

// clientOn is a gRPC client on one connection; when that ends, so does the client's use.
func clientOn(conn *tls.Conn, target string) (*grpc.ClientConn, error) {
	once := make(chan net.Conn, 1)
	once <- conn
	return grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(established{}),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-once:
				return c, nil
			default:
				return nil, errors.New("the connection broke")
			}
		}))
}

// established are credentials for a connection whose handshake is done.
type established struct {
	credentials.TransportCredentials
}

// ClientHandshake implements credentials.TransportCredentials.
func (established) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t, ok := c.(*tls.Conn)
	if !ok {
		return nil, nil, fmt.Errorf("join: %T is not a TLS connection", c)
	}
	return c, credentials.TLSInfo{State: t.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

// Info implements credentials.TransportCredentials.
func (established) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (e established) Clone() credentials.TransportCredentials { return e }

func withPort(addr string) string {
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	return net.JoinHostPort(strings.Trim(addr, "[]"), DefaultPort)
}
