package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// Config is the identity of this server and how it finds the others. ServerID, ClusterID, Certificate, Roots and Resolve are required.
type Config struct {
	// ServerID and ClusterID are 32 hexadecimal digits each.
	ServerID, ClusterID string
	// Generation counts the resets of the cluster. Default: always 1.
	Generation func() int64
	// OnGeneration is called with every peer that is of a newer generation than this server, on the connection's goroutine. It must
	// not block.
	OnGeneration func(remoteID string, theirs int64)
	// Certificate returns the newest certificate of this server. It is called at every handshake; a connection that was made with an
	// older certificate is replaced.
	Certificate func() (*tls.Certificate, error)
	// Roots returns the authorities that verify peers' certificates. It is called at every handshake.
	Roots func() *x509.CertPool
	// Resolve returns host:port of a server. It is called at every dial.
	Resolve func(serverID string) (addr string, ok bool)
	// Dial opens a TCP connection. Default: a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Logger takes refusals, each kind at most once a minute per peer. Default:
	// slog.Default().
	Logger *slog.Logger

	// DialTimeout bounds connecting, TLS and hello together. Default 1 s.
	DialTimeout time.Duration
	// HeartbeatTimeout is how long a heartbeat or a pre-vote may take before its connection is closed. Default 1 s.
	HeartbeatTimeout time.Duration
	// AppendTimeout is how long a peer may take to append or to vote, its disk included. Default 10 s.
	AppendTimeout time.Duration
	// MaxInFlight is how many appends are under way to a peer at once. With more than a few, batches are small and commits slow.
	// Default 2.
	MaxInFlight int
	// PingInterval is how often a peer is pinged on an open connection for requests, and how long its answer may take. Default 2 s.
	PingInterval time.Duration
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var faults []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("peer: "+format, args...))
		}
	}
	need(isID(c.ServerID), "ServerID %q is not 32 hexadecimal digits", c.ServerID)
	need(isID(c.ClusterID), "ClusterID %q is not 32 hexadecimal digits", c.ClusterID)
	need(c.Certificate != nil, "Certificate is required")
	need(c.Roots != nil, "Roots is required")
	need(c.Resolve != nil, "Resolve is required")
	need(c.MaxInFlight >= 2, "MaxInFlight is %d, at least 2 is needed", c.MaxInFlight)
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"DialTimeout", c.DialTimeout}, {"HeartbeatTimeout", c.HeartbeatTimeout},
		{"AppendTimeout", c.AppendTimeout}, {"PingInterval", c.PingInterval},
	} {
		need(d.d > 0, "%s is %v, it must be positive", d.name, d.d)
	}
	return errors.Join(faults...)
}

// withDefaults fills in the fields that are zero.
func (c Config) withDefaults() Config {
	if c.Generation == nil {
		c.Generation = func() int64 { return 1 }
	}
	if c.OnGeneration == nil {
		c.OnGeneration = func(string, int64) {}
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{KeepAlive: keepAlive, Control: tuneSocket}).DialContext
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.DialTimeout, time.Second)
	def(&c.HeartbeatTimeout, time.Second)
	def(&c.AppendTimeout, 10*time.Second)
	def(&c.PingInterval, 2*time.Second)
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 2
	}
	return c
}
