package peer

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
)

// ServerCredentials returns the credentials for a grpc.Server on Port.GRPC. They take a connection whose handshake is done and show its
// state to handlers as the credentials.TLSInfo of peer.FromContext. State.VerifiedChains is empty for clients without a certificate.
func ServerCredentials() credentials.TransportCredentials { return established{} }

// established are transport credentials for connections whose TLS handshake is done already.
type established struct{}

// secured is a connection with a TLS state: *tls.Conn or *conn.
type secured interface {
	net.Conn
	ConnectionState() tls.ConnectionState
}

func (established) authInfo(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(secured)
	if !ok {
		return nil, nil, fmt.Errorf("peer: %T is not a TLS connection", raw)
	}
	state := c.ConnectionState()
	if !state.HandshakeComplete {
		return nil, nil, fmt.Errorf("peer: TLS handshake is not done")
	}
	return c, credentials.TLSInfo{
		State:          state,
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (e established) ClientHandshake(_ context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return e.authInfo(raw)
}

// ServerHandshake implements credentials.TransportCredentials.
func (e established) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return e.authInfo(raw)
}

// Info implements credentials.TransportCredentials.
func (established) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (e established) Clone() credentials.TransportCredentials { return e }

// OverrideServerName implements credentials.TransportCredentials.
func (established) OverrideServerName(string) error { return nil }
