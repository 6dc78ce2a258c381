package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/balsahq/balsa/control/auth/pki"
)

// Dialer keeps one connection to each other server's service. A server is identified by its name in its peer certificate;
// its address is looked up at each dial.
type Dialer struct {
	own     func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	roots   func() *x509.CertPool
	resolve func(serverID string) (string, bool)

	mu     sync.Mutex
	conns  map[string]*grpc.ClientConn
	closed bool
}

// NewDialer takes this server's peer certificate, the CAs that count at a moment, and what says where a server is now.
func NewDialer(own *pki.Leaf, roots func() *x509.CertPool, resolve func(serverID string) (addr string, ok bool)) *Dialer {
	return &Dialer{own: own.GetClientCertificate, roots: roots, resolve: resolve, conns: map[string]*grpc.ClientConn{}}
}

// Dial implements Config.DialServer. It does not wait for the connection.
func (d *Dialer) Dial(_ context.Context, serverID string) (*grpc.ClientConn, error) {
	if err := pki.CheckServerID(serverID); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, net.ErrClosed
	}
	if c := d.conns[serverID]; c != nil {
		return c, nil
	}
	patience := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
	c, err := grpc.NewClient("passthrough:///"+serverID,
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: patience, MinConnectTimeout: 3 * time.Second}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		grpc.WithTransportCredentials(credentials.NewTLS(pki.PeerTLS(d.own, d.roots, serverID))),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			addr, ok := d.resolve(serverID)
			if !ok {
				return nil, fmt.Errorf("the address of server %s is not known", short(serverID))
			}
			var dialer net.Dialer
			return dialer.DialContext(ctx, "tcp", addr)
		}))
	if err == nil {
		d.conns[serverID] = c
	}
	return c, err
}

// Drop ends the connection to a server that is gone, or has moved.
func (d *Dialer) Drop(serverID string) {
	d.mu.Lock()
	c := d.conns[serverID]
	delete(d.conns, serverID)
	d.mu.Unlock()
	if c != nil {
		_ = c.Close() // nothing of it is waited for
	}
}

// Close ends all connections.
func (d *Dialer) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	var errs []error
	for id, c := range d.conns {
		errs = append(errs, c.Close())
		delete(d.conns, id)
	}
	return errors.Join(errs...)
}
