package tunnel

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/balsahq/balsa/control/tunnel/mux"
)

// ALPN is the protocol that a node requests in its TLS handshake with a server's port.
const ALPN = mux.ALPN

// Mode says when the connection that a node has opened is used.
type Mode string

// The modes.
const (
	Auto   Mode = "auto"   // if a direct connection fails or takes longer than Config.HeadStart
	Always Mode = "always" // direct connections are not tried
	Never  Mode = "never"  // nodes' connections carry no requests; they only show that the nodes are alive
)

// Modes are all modes.
var Modes = []Mode{Auto, Always, Never}

// DialFunc connects to an address.
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// Config configures a Tunnel.
type Config struct {
	// Mode defaults to Auto.
	Mode Mode
	// Self is the name of this machine's node, which is always reached directly; "" when it runs none.
	Self string
	// Networks are the networks of pods and Services.
	Networks []netip.Prefix
	// Inside is true if this machine is part of the pod network, and so can connect to pods and Services directly.
	Inside bool
	// Identify returns the node that a verified client certificate belongs to, or an error when it belongs to none or was
	// revoked. It is called when a node connects and each time its connection is used.
	Identify func(*x509.Certificate) (node string, err error)
	// Dial makes direct connections. Default: a net.Dialer with a timeout of 30 s.
	Dial DialFunc
	// HeadStart is how long a direct connection is tried before the tunnel is tried in parallel. Default 300 ms.
	HeadStart time.Duration
	// Patience bounds the time for connecting through a node. Default 15 s.
	Patience time.Duration
	// Memory is how long direct connections are not tried after a failure. It doubles with each further failure, up to ten
	// times this. Default 1 min.
	Memory time.Duration
	// Beat is the pause between two pings to a node. A node that leaves four unanswered is away. The pause grows when there
	// are more than a thousand nodes. Default 500 ms.
	Beat time.Duration
	// Return is how long a node whose connection has ended may take to come back. Default 1 s.
	Return time.Duration
	// AskAgain is the pause before the other servers are asked again about a node that answers them and not this server. It
	// is also the timeout of one such question. Default 1 s.
	AskAgain time.Duration
	// Elsewhere returns those of nodes that answer other servers; nil: there are no other servers.
	Elsewhere func(ctx context.Context, nodes []string) (heard []string)
	// Receive, if set, reads a node's reports of what it and its pods use from a connection until that ends, closes it and
	// returns why. It runs once for each node that is connected; after a pause of ReceiveAgain (default 15 s) it gets another.
	Receive      func(node string, c net.Conn) error
	ReceiveAgain time.Duration
	// MaxStreams bounds the connections carried at once by one node. Default 512.
	MaxStreams int
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	if c.Mode != "" && !slices.Contains(Modes, c.Mode) {
		errs = append(errs, fmt.Errorf("tunnel: mode %q: want one of %v", c.Mode, Modes))
	}
	if c.Identify == nil {
		errs = append(errs, errors.New("tunnel: Config.Identify must be set"))
	}
	if c.HeadStart < 0 || c.Patience < 0 || c.Memory < 0 || c.MaxStreams < 0 || c.Beat < 0 || c.Return < 0 || c.AskAgain < 0 || c.ReceiveAgain < 0 {
		errs = append(errs, errors.New("tunnel: Config has a negative bound"))
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.HeadStart, 300*time.Millisecond)
	def(&c.Patience, 15*time.Second)
	def(&c.Memory, time.Minute)
	def(&c.Beat, 500*time.Millisecond)
	def(&c.Return, time.Second)
	def(&c.AskAgain, time.Second)
	def(&c.ReceiveAgain, 15*time.Second)
	if c.Mode == "" {
		c.Mode = Auto
	}
	if c.MaxStreams == 0 {
		c.MaxStreams = 512
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// only reports whether an address can be reached only from nodes of the cluster.
func (c *Config) only(a netip.Addr) bool {
	a = a.Unmap()
	return slices.ContainsFunc(c.Networks, func(p netip.Prefix) bool { return p.Contains(a) })
}
