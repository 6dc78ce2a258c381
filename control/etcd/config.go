package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/balsahq/balsa/raftstore"
)

// Config configures a Server. Store and Authorize must be set; the zero value of every other field is a sensible default.
type Config struct {
	// Store holds the keys. The server does not close it.
	Store *raftstore.Store
	// Authorize returns an error if a caller may not use the API. It is called for every request and at the start of every
	// stream; see [Organizations].
	Authorize func(context.Context) error
	// Members lists the servers of the cluster for etcd's member list. Nil: this
	// server alone, without addresses.
	Members func() []Member

	// Prefix is the prefix of the keys of etcd's clients in the store; it ends with a slash. Default "/balsa/etcd/".
	Prefix string
	// MaxRequestBytes bounds one request, as --max-request-bytes of etcd.
	// Default 1.5 MiB.
	MaxRequestBytes int
	// MaxTxnOps bounds the operations of one transaction, as --max-txn-ops of
	// etcd. Default 128.
	MaxTxnOps int
	// MaxWatches bounds the watches of one stream. Default 100,000.
	MaxWatches int
	// RequestTimeout ends a request whose caller set no earlier deadline.
	// Default 7 s.
	RequestTimeout time.Duration
	// ProgressInterval is how often a watch with progress notifications gets the revision while there are no events. Default
	// 1 min.
	ProgressInterval time.Duration
	// LeaderGrace is how long there may be no leader before streams whose client requires one are ended. Default 3 s.
	LeaderGrace time.Duration
	// TempDir is the directory in which a snapshot is built before it is sent. Default is the system's.
	TempDir string

	Logger *slog.Logger
}

// Member is a server of the cluster.
type Member struct {
	ServerID   string // 32 hex digits
	Name       string
	PeerURLs   []string
	ClientURLs []string
	Learner    bool
}

func (c *Config) setDefaults() {
	def(&c.Prefix, "/balsa/etcd/")
	def(&c.MaxRequestBytes, 3<<19)
	def(&c.MaxTxnOps, 128)
	def(&c.MaxWatches, 100_000)
	def(&c.RequestTimeout, 7*time.Second)
	def(&c.ProgressInterval, time.Minute)
	def(&c.LeaderGrace, 3*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Members == nil {
		id := c.Store.ServerID()
		c.Members = func() []Member { return []Member{{ServerID: id, Name: id}} }
	}
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Validate reports every fault of the configuration at once.
func (c *Config) Validate() error {
	var errs []error
	if c.Store == nil {
		errs = append(errs, errors.New("no Store"))
	}
	if c.Authorize == nil {
		errs = append(errs, errors.New("no Authorize: who may use the API must be said"))
	}
	if c.Prefix != "" && (len(c.Prefix) < 2 || !strings.HasSuffix(c.Prefix, "/")) {
		errs = append(errs, fmt.Errorf("Prefix %q does not end with a slash or is empty before it", c.Prefix))
	}
	for _, n := range []struct {
		name string
		v    int64
	}{
		{"MaxRequestBytes", int64(c.MaxRequestBytes)}, {"MaxTxnOps", int64(c.MaxTxnOps)}, {"MaxWatches", int64(c.MaxWatches)},
		{"RequestTimeout", int64(c.RequestTimeout)}, {"ProgressInterval", int64(c.ProgressInterval)}, {"LeaderGrace", int64(c.LeaderGrace)},
	} {
		if n.v < 0 {
			errs = append(errs, fmt.Errorf("%s is negative: %d", n.name, n.v))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("etcd API: configuration: %w", err)
	}
	return nil
}
