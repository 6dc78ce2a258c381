package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
)

// ErrNoServer: none of the servers could be reached. The text has each one's reason.
var ErrNoServer = errors.New("no server of the cluster answers")

const (
	probeTime  = 3 * time.Second // for one server to shake hands
	retryFirst = time.Second
	retryLast  = 30 * time.Second
)

// ClientConfig says whom a Client talks to, and as whom.
type ClientConfig struct {
	// Servers returns the addresses, host:port, in the order in which they are tried. It is asked at each connection.
	Servers func() []string
	// Roots are the CAs that count; asked at each connection.
	Roots func() *x509.CertPool
	// Behind is called when a server could be verified only through links to newer CAs: the CA was rotated without this
	// machine. May be nil.
	Behind func()
	// Certificate is shown to servers; asked at each connection.
	Certificate func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	// Now defaults to time.Now, Logger to slog.Default().
	Now    func() time.Time
	Logger *slog.Logger
}

// Client talks to whichever server answers, and to another one when that goes. Safe for concurrent use.
type Client struct {
	cfg ClientConfig

	mu   sync.Mutex
	conn *grpc.ClientConn
	addr string
}

// NewClient dials nothing yet.
func NewClient(cfg ClientConfig) (*Client, error) {
	if cfg.Servers == nil || cfg.Roots == nil || cfg.Certificate == nil {
		return nil, errors.New("join: a client needs Servers, Roots and Certificate")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Client{cfg: cfg}, nil
}

// tlsConfig verifies the chain and that it is a server's certificate. The address is not compared: a server's may have
// changed a moment ago, and none but servers have such certificates.
func (c *Client) tlsConfig() *tls.Config {
	return ServerTLS(c.cfg, "h2")
}

// ServerTLS is how a member dials any server of the cluster at its one port, for a protocol that is told apart there. Of
// cfg it takes Roots, Behind, Certificate and Now.
func ServerTLS(cfg ClientConfig, protocol string) *tls.Config {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{protocol}, GetClientCertificate: cfg.Certificate,
		VerifyConnection: func(cs tls.ConnectionState) error {
			chains, err := pki.VerifyServer(cs, x509.VerifyOptions{Roots: cfg.Roots(), CurrentTime: cfg.Now()})
			if err != nil {
				return unknownCA(err)
			}
			leaf := cs.PeerCertificates[0]
			if !pki.IsServers(leaf) {
				return fmt.Errorf("the certificate of %q is not a server's", leaf.Subject.CommonName)
			}
			const direct = 2 // the server's certificate and its CA
			if cfg.Behind != nil && !slices.ContainsFunc(chains, func(c []*x509.Certificate) bool { return len(c) == direct }) {
				cfg.Behind()
			}
			return nil
		},
	}
}

// Addr is the server in use, empty when there is none yet.
func (c *Client) Addr() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addr
}

// Close ends the connection.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return nil
	}
	conn := c.conn
	c.conn, c.addr = nil, ""
	return conn.Close()
}

// connection returns the one in use, or the first that can be made.
func (c *Client) connection(ctx context.Context) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		return c.conn, nil
	}
	var errs []error
	for _, addr := range c.cfg.Servers() {
		conn, err := c.try(ctx, withPort(addr))
		if err == nil {
			c.conn, c.addr = conn, addr
			return conn, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", addr, err))
	}
	return nil, fmt.Errorf("%w: %w", ErrNoServer, errors.Join(errs...))
}

// try shakes hands with one server, then gives the connection to gRPC, which makes others like it.
func (c *Client) try(ctx context.Context, addr string) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	first, err := pinnedConn(ctx, addr, c.tlsConfig())
	if err != nil {
		return nil, err
	}
	once := make(chan net.Conn, 1)
	once <- first
	return grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(established{}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			select {
			case conn := <-once:
				return conn, nil
			default:
				return pinnedConn(ctx, addr, c.tlsConfig())
			}
		}))
}

// drop forgets a connection that failed; the next call finds another server.
func (c *Client) drop(conn *grpc.ClientConn) {
	c.mu.Lock()
	if c.conn == conn {
		c.conn, c.addr = nil, ""
	}
	c.mu.Unlock()
	_ = conn.Close() // closing it twice says so, which does not matter
}

// Do calls fn with a server. When that one cannot be reached, each other is tried once; fn must be safe to repeat.
func (c *Client) Do(ctx context.Context, fn func(context.Context, clusterpb.ClusterClient) error) error {
	var last error
	for range max(1, len(c.cfg.Servers())) + 1 {
		conn, err := c.connection(ctx)
		if err != nil {
			return errors.Join(err, last)
		}
		err = fn(ctx, clusterpb.NewClusterClient(conn))
		if err == nil || status.Code(err) != codes.Unavailable || ctx.Err() != nil {
			return plain(err)
		}
		last = plain(err)
		c.drop(conn)
	}
	return last
}

// FollowServers calls apply with where the servers are and which keys count, now and at each change, as whichever server answers says, until ctx
// ends or the cluster says that this machine is no member any more.
func (c *Client) FollowServers(ctx context.Context, apply func(*clusterpb.ServerList)) error {
	pause := retryFirst
	for {
		err := c.Do(ctx, func(ctx context.Context, cc clusterpb.ClusterClient) error {
			stream, err := cc.Servers(ctx, &clusterpb.ServersRequest{})
			if err != nil {
				return err
			}
			for {
				list, err := stream.Recv()
				if err != nil {
					return err
				}
				pause = retryFirst
				apply(list)
			}
		})
		if ctx.Err() != nil {
			return nil
		}
		if status.Code(err) == codes.PermissionDenied {
			return err
		}
		if status.Code(err) == codes.Canceled { // Close: the certificate was renewed
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			c.cfg.Logger.Warn("the list of servers is not followed; trying again", "err", err, "in", pause)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, retryLast)
	}
}

// Agent holds an agent's three certificates. Renewing them is one call, so that they are of one age.
type Agent struct {
	Client, Serving, Services *pki.Credentials

	behind atomic.Bool // no server may take the certificate: it proves itself by its key
}

// Behind has the certificates renewed at once, without showing the old one, which no server may take any more.
func (a *Agent) Behind() {
	a.behind.Store(true)
	a.Client.RenewSoon()
}

// OpenAgent reads what Join kept in dir.
func OpenAgent(dir string, now func() time.Time, log *slog.Logger) (*Agent, error) {
	o := Options{Dir: dir, Now: now, Logger: log}
	o.setDefaults()
	k, err := o.keys()
	if err != nil {
		return nil, err
	}
	return &Agent{Client: k.main, Serving: k.serving, Services: k.services}, nil
}

// Run renews the certificates when a third of their life is left, through c, until ctx ends. addresses are the node's
// IPs now: when the certificates name others, they are renewed at once. learnt gets the answer to each renewal
// and may be nil. Certificates that are not valid by the wall clock, or after Behind, are renewed without showing them: see
// renewExpired.
func (a *Agent) Run(ctx context.Context, c *Client, addresses func() []string, learnt func(*clusterpb.RenewResponse)) error {
	if !a.names(addresses()) {
		a.Client.RenewEarly()
	}
	return a.Client.Run(ctx, func(ctx context.Context, csr []byte) ([]byte, error) {
		req := &clusterpb.RenewRequest{Csr: csr, Addresses: addresses()}
		var err error
		if req.ServingCsr, err = a.Serving.Request(); err != nil {
			return nil, err
		}
		if req.ServicesCsr, err = a.Services.Request(); err != nil {
			return nil, err
		}
		var answer *clusterpb.RenewResponse
		if a.Client.Valid() && !a.behind.Load() {
			err = c.Do(ctx, func(ctx context.Context, cc clusterpb.ClusterClient) error {
				answer, err = cc.Renew(ctx, req)
				return err
			})
		} else {
			answer, err = a.renewExpired(ctx, c, req)
		}
		if err != nil {
			return nil, err
		}
		if len(answer.LeftOut) > 0 {
			c.cfg.Logger.Warn("the servers do not certify these addresses of this node, from which it does not reach them; logs and exec still work. Join again with a token to have them certified",
				"addresses", answer.LeftOut)
		}
		if err := a.Serving.Install(answer.ServingCertificate); err != nil {
			return nil, err
		}
		if err := a.Services.Install(answer.ServicesCertificate); err != nil {
			return nil, err
		}
		if learnt != nil {
			learnt(answer)
		}
		a.behind.Store(false)
		return answer.Certificate, nil
	})
}

// names reports whether the node's serving certificate is for these addresses and no others.
func (a *Agent) names(addresses []string) bool {
	c := a.Serving.Certificate()
	if c == nil {
		return false
	}
	var named []string
	for _, ip := range c.IPAddresses {
		if !ip.IsLoopback() {
			named = append(named, ip.String())
		}
	}
	slices.Sort(named)
	want := slices.Sorted(slices.Values(addresses))
	return slices.Equal(named, want)
}

// Wake lets Run look at the certificates now: the wall clock was set.
func (a *Agent) Wake() { a.Client.Wake() }

// renewExpired asks for certificates over a connection that shows none, and proves with the key of the expired one that it
// is the same machine.
func (a *Agent) renewExpired(ctx context.Context, c *Client, r *clusterpb.RenewRequest) (*clusterpb.RenewResponse, error) {
	settings := c.cfg
	settings.Behind = nil
	settings.Certificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tls.Certificate{}, nil }
	stranger, err := NewClient(settings)
	if err != nil {
		return nil, err
	}
	defer stranger.Close()
	req := &clusterpb.JoinRequest{
		Role: clusterpb.Role_ROLE_AGENT, Name: strings.TrimPrefix(a.Client.Certificate().Subject.CommonName, pki.NodePrefix),
		Csr: r.Csr, ServingCsr: r.ServingCsr, ServicesCsr: r.ServicesCsr, Addresses: r.Addresses,
	}
	req.Certificate, _ = a.Client.PEM()
	if _, req.Proof, err = a.Client.Prove(cluster.RenewalDigest(req)); err != nil {
		return nil, err
	}
	var answer *clusterpb.JoinResponse
	err = stranger.Do(ctx, func(ctx context.Context, cc clusterpb.ClusterClient) error {
		answer, err = cc.Join(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	_ = c.Close() // its connection was made with the expired certificate; the next call makes another
	return &clusterpb.RenewResponse{Certificate: answer.Certificate, ServingCertificate: answer.ServingCertificate,
		ServicesCertificate: answer.ServicesCertificate, Ca: answer.Ca, Servers: answer.Servers}, nil
}

// Addresses are those of servers that have one.
func Addresses(servers []*clusterpb.ServerAddress) []string {
	var out []string
	for _, s := range servers {
		if s.Address != "" && !slices.Contains(out, s.Address) {
			out = append(out, s.Address)
		}
	}
	return out
}
